// What a client of the transport sees: answers, framing, limits, clocks.
#include "http/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "http/listener.h"
#include "http/rate_clock.h"
#include "http/raw_client.h"
#include "http/server_test_handler.h"

namespace halfbyte {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string Get(const std::string& path, const std::string& fields = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + fields + "\r\n";
}
std::string Post(const std::string& path, const std::string& body, const std::string& more = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n{}\r\n{}", path,
                     body.size(), more, body);
}

TEST_F(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  Start();
  RawClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    const auto hello = client.Ask(Get("/hello", "x-request-id: mine\r\n"));
    ASSERT_TRUE(hello);
    EXPECT_EQ(hello->status, 200);
    EXPECT_EQ(hello->body, "hello\n");
    EXPECT_EQ(hello->Field("Content-Length"), "6");
    EXPECT_EQ(hello->Field("Content-Type"), "text/plain");
    EXPECT_EQ(hello->Field("x-request-id"), "mine");
    EXPECT_EQ(hello->Field("Date").size(), std::string("Sun, 06 Nov 1994 08:49:37 GMT").size());
    EXPECT_EQ(hello->fields.Find("Connection"), std::nullopt);
    const std::string body(100'000, static_cast<char>('a' + i));
    EXPECT_EQ(client.Ask(Post("/echo", body))->body, body);
  }
  EXPECT_EQ(server->connections(), 1);
  client.Close();
  EXPECT_TRUE(NobodyIsConnected());
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  Start();
  RawClient client(server->port());
  client.Send(Post("/echo", "one") + Get("/hello") + Post("/echo", "three"));
  EXPECT_EQ(client.Read()->body, "one");
  EXPECT_EQ(client.Read()->body, "hello\n");
  EXPECT_EQ(client.Read()->body, "three");
}

TEST_F(HttpServerTest, ClosesWhenEitherSideWantsTo) {
  Start();
  for (const std::string& request : {Get("/hello", "Connection: close\r\n"), Get("/closing")}) {
    RawClient client(server->port());
    EXPECT_EQ(client.Ask(request)->Field("Connection"), "close");
    EXPECT_TRUE(client.AtEnd());
  }
}

TEST_F(HttpServerTest, HoldsAnAnswerBackUntilItsTime) {
  Start([](HttpOptions& options) { options.poll_interval = milliseconds(10); });
  handler.refused_not_before = steady_clock::now() + milliseconds(100);
  RawClient held(server->port()), other(server->port());
  held.Send(Get("/refused"));
  EXPECT_EQ(other.Ask(Get("/hello"))->status, 200);
  EXPECT_EQ(held.Read()->status, 401);
  EXPECT_GE(steady_clock::now(), handler.refused_not_before);
}

TEST_F(HttpServerTest, ServesHttp10) {
  Start();
  RawClient once(server->port());
  const auto closed = once.Ask("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(closed->body, "hello\n");
  EXPECT_EQ(closed->Field("Connection"), "close");
  EXPECT_TRUE(once.AtEnd());

  RawClient stays(server->port());
  for (int i = 0; i < 2; ++i) {
    const auto kept = stays.Ask("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept->Field("Connection"), "keep-alive");
  }
  // A stream has no length and no chunks: its end is the connection's.
  stays.Send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  handler.stream(0)->Send("one");
  const auto streamed = stays.ReadHead();
  EXPECT_EQ(streamed->fields.Find("Transfer-Encoding"), std::nullopt);
  EXPECT_EQ(streamed->fields.Find("Content-Length"), std::nullopt);
  EXPECT_EQ(streamed->Field("Connection"), "close");
  handler.stream(0)->Finish("two");
  EXPECT_EQ(stays.ReadToEnd(), "onetwo");
}

TEST_F(HttpServerTest, HeadAndNoContentHaveNoBody) {
  Start();
  RawClient client(server->port());
  client.Send("HEAD /hello HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.Read(/*has_body=*/false)->Field("Content-Length"), "6");
  client.Send(Get("/empty"));
  const auto empty = client.Read(/*has_body=*/false);
  EXPECT_EQ(empty->status, 204);
  EXPECT_EQ(empty->fields.Find("Content-Length"), std::nullopt);
  EXPECT_EQ(client.Ask(Get("/hello"))->body, "hello\n");
}

TEST_F(HttpServerTest, ValuesCannotAddFields) {
  Start();
  RawClient client(server->port());
  const auto answer = client.Ask(Get("/injected"));
  EXPECT_EQ(answer->Field("X-Said"), "a??X-Evil: b");
  EXPECT_EQ(answer->fields.Find("X-Evil"), std::nullopt);
}

TEST_F(HttpServerTest, WhatWaitsForAStreamIsOneChunk) {
  Start();
  RawClient client(server->port());
  client.Send(Get("/stream"));
  const auto stream = handler.stream(0);
  stream->Send("first");
  const auto head = client.ReadHead();
  ASSERT_TRUE(head);
  EXPECT_EQ(head->Field("Transfer-Encoding"), "chunked");
  EXPECT_EQ(client.ReadChunk(), "first");
  for (int i = 0; i < 100; ++i) {
    stream->Send(fmt::format("text {}", i));
    EXPECT_EQ(client.ReadChunk(), fmt::format("text {}", i));
  }
  stream->Finish("last");
  EXPECT_EQ(client.ReadChunk(), "last");
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_EQ(client.Ask(Get("/hello"))->body, "hello\n") << "the connection goes on";
  EXPECT_FALSE(stream->alive());
}

TEST_F(HttpServerTest, EarlyBytesOfTheNextRequestsWait) {
  Start();
  RawClient client(server->port());
  client.Send(Get("/stream"));
  const auto stream = handler.stream(0);
  // More than is read while a reply runs.
  const std::string body(1 << 20, 'b');
  std::thread sender([&] { client.Send(Get("/hello") + Post("/echo", body)); });
  stream->Send("a");
  EXPECT_TRUE(client.ReadHead());
  EXPECT_EQ(client.ReadChunk(), "a");
  EXPECT_EQ(handler.handled, 1);
  stream->Finish();
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_EQ(client.Read()->body, "hello\n");
  EXPECT_EQ(client.Read()->body, body);
  sender.join();
}

TEST_F(HttpServerTest, ASilentReplyIsPolledAgainAndAgain) {
  Start([](HttpOptions& o) { o.poll_interval = milliseconds(10); });
  RawClient client(server->port());
  client.Send(Get("/stream"));
  const auto stream = handler.stream(0);
  EXPECT_TRUE(Eventually([&] { return stream->polls() > 5; }));
}

TEST_F(HttpServerTest, AClientThatReadsSlowlyGetsEverything) {
  Start();
  RawClient client(server->port(), /*receive_buffer=*/8192);
  client.Send(Get("/stream"));
  const auto stream = handler.stream(0);
  std::string sent;
  int polls = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string part(20'000, static_cast<char>('a' + i % 26));
    sent += part;
    stream->Send(part);
    polls = stream->polls();
  }
  EXPECT_LT(polls, 200) << "nothing is taken from a reply while the socket is full";
  stream->Finish();
  EXPECT_EQ(client.Read()->body, sent);
  EXPECT_EQ(client.Ask(Get("/large"))->body.size(), size_t{1} << 20);
}

TEST_F(HttpServerTest, InvitesABodyThatWaitsForIt) {
  Start([](HttpOptions& o) { o.max_body_bytes = 1000; });
  const std::string expect = "Expect: 100-continue\r\n";
  RawClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n" + expect + "\r\n");
  EXPECT_EQ(client.ReadHead()->status, 100);
  EXPECT_EQ(client.Ask("body")->body, "body");
  EXPECT_EQ(client.Ask(Post("/echo", "came along", expect))->body, "came along");

  RawClient refused(server->port());
  EXPECT_EQ(
      refused.Ask("POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n" + expect + "\r\n")
          ->status,
      401);
  RawClient large(server->port());
  EXPECT_EQ(
      large.Ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4000\r\n" + expect + "\r\n")
          ->status,
      413);
}

TEST_F(HttpServerTest, ReadsNothingOfARequestThatItsHeadRefuses) {
  Start();
  RawClient client(server->port());
  EXPECT_EQ(client.Ask(Get("/refused"))->status, 401);
  // Without a body the connection goes on; with one it ends, and who sends it can read the answer.
  client.Send(Post("/refused", std::string(3 << 20, 'x')));
  const auto refused = client.Read();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 401);
  EXPECT_EQ(refused->Field("Connection"), "close");
  EXPECT_TRUE(client.AtEnd());
  EXPECT_EQ(handler.handled, 0);
}

TEST_F(HttpServerTest, AnswersEachKindOfBadRequestAndCloses) {
  Start([](HttpOptions& o) { o.max_body_bytes = 1000; });
  const std::string flood(20'000, 'f');
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::pair<std::string, std::pair<int, std::string>> kCases[] = {
      {"nonsense\r\n\r\n", {400, "bad_request"}},
      {"\x16\x03\x01\x02\x01\x01", {400, "bad_request"}},
      {Get("/hello", "Host: again\r\n"), {400, "bad_request"}},
      {chunked + "zz\r\n\r\n", {400, "bad_request"}},
      {Get("/" + std::string(4096, 'u')), {414, "url_too_long"}},
      {"GET /" + flood, {414, "url_too_long"}},
      {Get("/hello", "X: " + flood + "\r\n"), {431, "headers_too_large"}},
      {Post("/echo", std::string(1001, 'b')), {413, "body_too_large"}},
      {"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n",
       {413, "body_too_large"}},
      {chunked + "3e8\r\n" + std::string(1000, 'b') + "\r\n1\r\nb\r\n", {413, "body_too_large"}},
  };
  for (const auto& [request, expected] : kCases) {
    RawClient client(server->port());
    const auto answer = client.Ask(request);
    ASSERT_TRUE(answer) << request.substr(0, 50);
    EXPECT_EQ(answer->status, expected.first) << request.substr(0, 50);
    EXPECT_EQ(answer->body, expected.second);
    EXPECT_EQ(answer->Field("Connection"), "close");
    EXPECT_FALSE(answer->Field("x-request-id").empty());
    EXPECT_TRUE(client.AtEnd());
  }
  EXPECT_EQ(handler.handled, 0);
}

TEST_F(HttpServerTest, SlowHeadsAndBodiesEndWith408AndIdleConnectionsWithout) {
  Start([](HttpOptions& o) {
    o.head_timeout = o.body_timeout = milliseconds(100);
    o.idle_timeout = milliseconds(300);
  });
  for (const std::string start :
       {"G", "GET / HTTP/1.1\r\nHost:",
        "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab"}) {
    RawClient client(server->port());
    const auto answer = client.Ask(start);
    ASSERT_TRUE(answer) << start;
    EXPECT_EQ(answer->status, 408);
    EXPECT_EQ(answer->body, "request_timeout");
    EXPECT_TRUE(client.AtEnd());
  }
  RawClient idle(server->port()), used(server->port());
  EXPECT_TRUE(used.Ask(Get("/hello")));
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_TRUE(used.AtEnd());
  EXPECT_TRUE(NobodyIsConnected());
}

TEST_F(HttpServerTest, AHeadThatDripsIsEndedABodyThatDripsIsNot) {
  Start([](HttpOptions& o) {
    o.head_timeout = milliseconds(200);
    o.body_timeout = milliseconds(1000);
    o.min_rate = 10;  // a byte each 100 ms
  });
  RawClient head(server->port()), body(server->port());
  head.Send("GET / HTTP/1.1\r\n");
  body.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 20\r\n\r\n");
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(milliseconds(60));
    head.Send("x");
    body.Send("y");
  }
  EXPECT_EQ(head.Read()->status, 408);
  EXPECT_EQ(body.Read()->body, std::string(20, 'y'));
}

TEST_F(HttpServerTest, ABodyMustComeAtARate) {
  Start([](HttpOptions& o) {
    o.body_timeout = milliseconds(100);
    o.min_rate = 1000;
  });
  RawClient client(server->port());
  client.Send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  // A byte is progress, but at this rate the body would last for days.
  bool open = true;
  for (int i = 0; i < 1000 && open; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    open = client.Send("1\r\nx\r\n");
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(handler.handled, 0);
  EXPECT_TRUE(NobodyIsConnected());
}

TEST_F(HttpServerTest, AClientThatTakesATrickleIsLeft) {
  Start([](HttpOptions& o) {
    o.write_timeout = milliseconds(100);
    o.min_rate = 100 << 20;
  });
  RawClient client(server->port(), /*receive_buffer=*/8192);
  client.Send(Get("/stream"));
  const auto stream = handler.stream(0);
  stream->Send(std::string(64 << 20, 'x'));
  client.ReadHead();
  char bytes[16384];
  int reads = 0;
  for (; stream->alive() && reads < 5000; ++reads) {
    std::this_thread::sleep_for(milliseconds(2));
    ASSERT_GE(::recv(client.socket(), bytes, sizeof(bytes), 0), 0);
  }
  EXPECT_LT(reads, 4000) << "it has taken all, though slowly";
  EXPECT_FALSE(stream->alive());
}

TEST_F(HttpServerTest, OneClientsConnectionsAreBounded) {
  Start([](HttpOptions& o) {
    o.max_connections = 10;
    o.max_connections_per_client = 3;
  });
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server->port()));
    EXPECT_EQ(clients.back()->Ask(Get("/hello"))->status, 200);
  }
  RawClient beyond(server->port());
  const auto refused = beyond.Ask(Get("/hello"));
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->body, "too_many_connections");
  RawClient other(server->port(), 0, /*from=*/"127.0.0.2");
  EXPECT_EQ(other.Ask(Get("/hello"))->status, 200);
  clients.pop_back();
  EXPECT_TRUE(Eventually([&] {
    RawClient again(server->port());
    return again.Ask(Get("/hello"))->status == 200;
  }));
}

TEST_F(HttpServerTest, OneClientsBodiesLeaveRoomForOthers) {
  Start([](HttpOptions& o) {
    o.max_body_bytes = 200 << 10;
    o.max_bodies_bytes = 600 << 10;
  });
  // Each counts 136 KiB, as the first 64 are free; 300 are one client's.
  const std::string body(200 << 10, 'b');
  RawClient client(server->port());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.Ask(Post("/keep", body))->status, 200);
  EXPECT_EQ(client.Ask(Post("/keep", body))->status, 503);
  RawClient other(server->port(), 0, /*from=*/"127.0.0.2");
  EXPECT_EQ(other.Ask(Post("/keep", body))->status, 200);
}

TEST(RateClock, GivesPatienceAndThenAsksForARate) {
  const steady_clock::time_point start;
  RateClock clock(start, std::chrono::seconds(30), 1000);
  EXPECT_EQ(clock.deadline(), start + std::chrono::seconds(30));
  clock.Count(5000, start + std::chrono::seconds(10));
  EXPECT_EQ(clock.deadline(), start + std::chrono::seconds(35));
  clock.Count(1'000'000, start + std::chrono::seconds(20));
  EXPECT_EQ(clock.deadline(), start + std::chrono::seconds(50)) << "no more is in stock";
  clock.Count(1, start + std::chrono::seconds(49));
  EXPECT_EQ(clock.deadline(), start + milliseconds(50'001));
}

TEST_F(HttpServerTest, BodiesAreBoundedTogether) {
  Start([](HttpOptions& o) {
    o.max_body_bytes = 200 << 10;
    o.max_bodies_bytes = 300 << 10;
  });
  // Each counts 136 KiB, as the first 64 are free.
  const std::string body(200 << 10, 'b');
  RawClient client(server->port());
  RawClient other(server->port(), 0, /*from=*/"127.0.0.2");
  EXPECT_EQ(client.Ask(Post("/keep", body))->status, 200);
  EXPECT_EQ(other.Ask(Post("/keep", body))->status, 200);
  for (const std::string& request :
       {Post("/echo", body),
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" +
            fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body)}) {
    RawClient refused(server->port());
    const auto answer = refused.Ask(request);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(answer->body, "too_many_bodies");
    EXPECT_EQ(answer->Field("Connection"), "close");
  }
  const std::string small(64 << 10, 's');
  EXPECT_EQ(client.Ask(Post("/echo", small))->body, small);
  handler.ForgetKept();
  EXPECT_EQ(client.Ask(Post("/keep", body))->status, 200);
  EXPECT_EQ(other.Ask(Post("/echo", body))->body, body);
}

TEST_F(HttpServerTest, OneConnectionTooManyIsToldSo) {
  Start([](HttpOptions& o) { o.max_connections = 2; });
  RawClient first(server->port());
  {
    RawClient second(server->port());
    EXPECT_TRUE(first.Ask(Get("/hello")));
    EXPECT_TRUE(second.Ask(Get("/hello")));
    RawClient third(server->port());
    third.Send(Get("/hello"));
    const auto answer = third.Read();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(answer->body, "too_many_connections");
    EXPECT_TRUE(third.AtEnd());
    EXPECT_EQ(server->connections(), 2);
  }
  EXPECT_TRUE(Eventually([&] { return server->connections() == 1; }));
  RawClient again(server->port());
  EXPECT_EQ(again.Ask(Get("/hello"))->status, 200);
}

TEST_F(HttpServerTest, ListensOnAUnixSocketAndReplacesOneLeftBehind) {
  const std::string path = fmt::format("{}http_{}.sock", testing::TempDir(), ::getpid());
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(left, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::close(left);
  Start([&](HttpOptions& o) { o.unix_path = path; });
  EXPECT_EQ(server->addresses(), std::vector<std::string>{"unix:" + path});
  EXPECT_EQ(server->port(), 0);
  RawClient client(path);
  EXPECT_EQ(client.Ask(Get("/hello"))->body, "hello\n");

  const auto second = HttpServer::Start({.unix_path = path}, &handler);
  ASSERT_FALSE(second) << "a socket in use is not taken away";
  EXPECT_NE(second.error().message.find(path), std::string::npos);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(HttpServer::Start({.unix_path = std::string(200, 'p')}, &handler));
}

TEST_F(HttpServerTest, NeitherTakesNorRemovesAFileThatIsNoSocketOfItsOwn) {
  const std::string path = fmt::format("{}http_{}.txt", testing::TempDir(), ::getpid());
  const auto refused = [&] {
    const auto started = HttpServer::Start({.unix_path = path}, &handler);
    return !started && started.error().message.find(path) != std::string::npos;
  };
  std::ofstream(path) << "precious";
  EXPECT_TRUE(refused());
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "precious");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/nowhere/at/all", path);
  EXPECT_TRUE(refused());
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  std::filesystem::remove(path);
  // What takes our socket's place while we serve is not ours to remove.
  Start([&](HttpOptions& o) { o.unix_path = path; });
  std::filesystem::remove(path);
  std::ofstream(path) << "precious";
  server.reset();
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
  std::filesystem::remove(path);
}

TEST(Listener, TheSocketsOfItsClientsInheritWhatItSets) {
  auto listeners = ListenOnTcp("127.0.0.1", 0);
  ASSERT_TRUE(listeners) << listeners.error().message;
  const RawClient client(listeners->front().port());
  const int listening = listeners->front().Release();
  const int accepted = ::accept(listening, nullptr, nullptr);
  const auto option = [&](int level, int name) {
    int value = -1;
    socklen_t size = sizeof(value);
    ::getsockopt(accepted, level, name, &value, &size);
    return value;
  };
  EXPECT_NE(option(IPPROTO_TCP, TCP_NODELAY), 0);
  EXPECT_NE(option(SOL_SOCKET, SO_KEEPALIVE), 0);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 60);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPINTVL), 15);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPCNT), 4);
  EXPECT_EQ(option(SOL_SOCKET, SO_SNDBUF), 256 << 10);  // the kernel doubles it
  ::close(accepted);
  ::close(listening);
}

TEST_F(HttpServerTest, SaysWhereItListensAndWhyItCannot) {
  Start([](HttpOptions& o) { o.host = "localhost"; });
  ASSERT_FALSE(server->addresses().empty());
  for (const std::string& url : server->addresses()) {
    EXPECT_TRUE(url.ends_with(fmt::format(":{}", server->port()))) << url;
  }
  const auto taken = HttpServer::Start({.port = server->port()}, &handler);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error().message.find(fmt::format("--port {}", server->port())),
            std::string::npos);
  EXPECT_NE(taken.error().message.find("in use"), std::string::npos) << taken.error().message;
  EXPECT_FALSE(HttpServer::Start({.host = "no such host", .port = 0}, &handler));
  if (const auto v6 = HttpServer::Start({.host = "::1", .port = 0}, &handler)) {
    EXPECT_TRUE((*v6)->addresses()[0].starts_with("http://[::1]:")) << (*v6)->addresses()[0];
  }
}

}  // namespace
}  // namespace halfbyte
