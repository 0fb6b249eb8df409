// The load generator against a server of a few lines that sends what the test says: what is wrong
// is told, what is right is counted.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "loadgen/http_answer_reader.h"
#include "loadgen/load_run.h"
#include "loadgen/metrics_text.h"
#include "loadgen/stream_check.h"

namespace halfbyte {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(HttpAnswerReader, ReadsAChunkedAnswerCutAnywhere) {
  const std::string answer =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A:  b \r\n\r\n"
      "5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\nTrailer: 1\r\n\r\n";
  for (size_t cut = 0; cut <= answer.size(); ++cut) {
    HttpAnswerReader reader;
    std::string body;
    ASSERT_TRUE(reader.Feed(answer.substr(0, cut), body).has_value());
    EXPECT_EQ(reader.complete(), cut == answer.size());
    ASSERT_TRUE(reader.Feed(answer.substr(cut), body).has_value());
    EXPECT_TRUE(reader.complete());
    EXPECT_TRUE(reader.keep_alive());
    EXPECT_EQ(body, "hello, world");
    EXPECT_EQ(reader.head()->Find("x-a"), "b");
  }
}

TEST(HttpAnswerReader, ReadsALengthAndABodyUpToTheEnd) {
  std::string body;
  HttpAnswerReader length;
  ASSERT_TRUE(length.Feed("HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc", body));
  EXPECT_TRUE(length.complete());
  EXPECT_EQ(length.head()->status, 404);
  EXPECT_FALSE(length.Feed("x", body));  // nothing was asked for
  HttpAnswerReader until_end;
  ASSERT_TRUE(until_end.Feed("HTTP/1.0 200 OK\r\n\r\ndef", body));
  EXPECT_FALSE(until_end.complete());
  ASSERT_TRUE(until_end.End());
  EXPECT_TRUE(until_end.complete());
  EXPECT_FALSE(until_end.keep_alive());
  EXPECT_EQ(body, "abcdef");
}

TEST(HttpAnswerReader, TellsWhatIsNoAnswer) {
  for (const std::string bytes :
       {"SSH-2.0\r\n", "HTTP/1.1 200 OK\r\nno field\r\n", "HTTP/1.1 200 OK\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n"}) {
    HttpAnswerReader reader;
    std::string body;
    EXPECT_FALSE(reader.Feed(bytes, body)) << bytes;
  }
  HttpAnswerReader cut;
  std::string body;
  ASSERT_TRUE(cut.Feed("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", body));
  EXPECT_FALSE(cut.End());
}

std::string Event(std::string_view text, std::string_view ids, std::string_view finish = "null") {
  return fmt::format(
      "data: {{\"choices\":[{{\"index\":0,\"text\":\"{}\",\"finish_reason\":{},"
      "\"token_ids\":[{}]}}],\"usage\":null}}\n\n",
      text, finish, ids);
}

const std::string kEnd = Event("", "", "\"length\"");
const std::string kUsage = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\n";
const std::string kDone = "data: [DONE]\n\n";
const ExpectedAnswer kExpected = {.ids = {7, 8, 9}, .text = "abc", .finish_reason = "length"};

// What the check says about a whole stream; empty: it is right.
std::string Verdict(const std::string& stream) {
  CompletionReader reader;
  StreamCheck check(&kExpected);
  const auto update = check.Feed(stream, reader);
  if (!update) return update.error().message;
  const Status end = check.End();
  return end ? "" : end.error().message;
}

TEST(StreamCheck, TakesTheRightStreamHoweverItIsCut) {
  const std::string stream = ": ready 41\n" + Event("a", "7") + ": ping\n\n" +
                             Event("bc", "8,9", "\"length\"") + kUsage + kDone;
  CompletionReader reader;
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    StreamCheck check(&kExpected);
    auto first = check.Feed(stream.substr(0, cut), reader);
    ASSERT_TRUE(first.has_value()) << first.error().message;
    auto second = check.Feed(stream.substr(cut), reader);
    ASSERT_TRUE(second.has_value()) << second.error().message;
    EXPECT_EQ(first->tokens + second->tokens, 3);
    EXPECT_EQ(first->events + second->events, 2);
    first->ready_ns.insert(first->ready_ns.end(), second->ready_ns.begin(), second->ready_ns.end());
    EXPECT_EQ(first->ready_ns, std::vector<int64_t>{41});
    EXPECT_TRUE(check.End().has_value());
  }
}

TEST(StreamCheck, NoticesLostRepeatedReorderedAndChangedTokens) {
  const std::string a = Event("a", "7"), b = Event("b", "8"), c = Event("c", "9");
  EXPECT_EQ(Verdict(a + b + c + kEnd + kUsage + kDone), "");
  EXPECT_NE(Verdict(a + c + kEnd + kDone), "");                           // lost
  EXPECT_NE(Verdict(a + b + kEnd + kDone), "");                           // lost at the end
  EXPECT_NE(Verdict(a + b + b + c + kEnd + kDone), "");                   // repeated
  EXPECT_NE(Verdict(a + b + c + c + kEnd + kDone), "");                   // repeated at the end
  EXPECT_NE(Verdict(a + c + b + kEnd + kDone), "");                       // out of order
  EXPECT_NE(Verdict(a + b + Event("x", "9") + kEnd + kDone), "");         // another text
  EXPECT_NE(Verdict(a + b + Event("", "9") + kEnd + kDone), "");          // text lost
  EXPECT_NE(Verdict(a + b + kEnd + c + kDone), "");                       // after the end
  EXPECT_NE(Verdict(a + b + c + kDone), "");                              // no finish_reason
  EXPECT_NE(Verdict(a + b + c + kEnd + kUsage), "");                      // no [DONE]
  EXPECT_NE(Verdict(a + b + c + kEnd + kDone + kUsage), "");              // behind [DONE]
  EXPECT_NE(Verdict(a + b + c + Event("", "", "\"stop\"") + kDone), "");  // another reason
  EXPECT_NE(Verdict(a + "data: {\"choices\":\n\n"), "");
  EXPECT_NE(Verdict("event: x\n" + a), "");
}

TEST(Metrics, AreSummedOverTheirLabels) {
  const Metrics metrics =
      ParseMetrics("# HELP x y\nx{a=\"1\"} 2\nx{a=\"2\"} 3.5\nx_more 7\nplain 1e3\n\nempty");
  EXPECT_EQ(SumOf(metrics, "x"), 5.5);
  EXPECT_EQ(SumOf(metrics, "x", "a=\"2\""), 3.5);
  EXPECT_EQ(SumOf(metrics, "plain"), 1000);
  EXPECT_EQ(SumOf(metrics, "absent"), 0);
}

TEST(Latencies, PercentilesAreRightToOnePercent) {
  Latencies latencies;
  EXPECT_EQ(latencies.Percentile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) latencies.Add(microseconds(100 * i));
  EXPECT_NEAR(latencies.Percentile(0.5), 50, 0.5);
  EXPECT_NEAR(latencies.Percentile(0.99), 99, 1);
  EXPECT_EQ(latencies.max_ms(), 100);
  EXPECT_EQ(latencies.Percentile(1), 100);
  EXPECT_EQ(latencies.count(), 1000);
}

// Answers each connection with one text, whatever is asked; /live and /metrics with an empty 200.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::string answer) : answer_(std::move(answer)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
    listen(listener_, 64);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    address_ = {.host = "127.0.0.1", .port = ntohs(address.sin_port)};
    thread_ = std::thread([this] { Serve(); });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  const ServerAddress& address() const { return address_; }

 private:
  void Serve() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0; close(fd)) {
      std::string request;
      char buffer[4096];
      while (request.find("\r\n\r\n") == std::string::npos) {
        const ssize_t count = recv(fd, buffer, sizeof(buffer), 0);
        if (count <= 0) break;
        request.append(buffer, static_cast<size_t>(count));
      }
      const std::string empty = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
      const std::string& answer = request.starts_with("GET") ? empty : answer_;
      send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      shutdown(fd, SHUT_WR);
      while (recv(fd, buffer, sizeof(buffer), 0) > 0) {
      }
    }
  }

  const std::string answer_;
  ServerAddress address_;
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::thread thread_;
};

LoadResult Load(const std::string& answer, LoadOptions options = {}) {
  const ScriptedServer server(answer);
  options.server = server.address();
  options.requests = {{.body = "{}", .expected = kExpected}};
  options.concurrency = 2;
  options.count = 6;
  options.limit = std::chrono::seconds(60);
  auto result = RunLoad(options);
  EXPECT_TRUE(result.has_value());
  return *result;
}

const std::string kStreamHead = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
const std::string kStream =
    Event("a", "7") + Event("b", "8") + Event("c", "9") + kEnd + kUsage + kDone;

TEST(LoadRun, CountsWhatIsRight) {
  const LoadResult result = Load(kStreamHead + kStream);
  EXPECT_EQ(result.faults, 0) << result.first_faults[0];
  EXPECT_EQ(result.started, 6);
  EXPECT_EQ(result.complete, 6);
  EXPECT_EQ(result.tokens, 18);
  EXPECT_EQ(result.first_token.count(), 6);
  EXPECT_EQ(result.statuses, (std::map<int, int64_t>{{200, 6}}));
}

TEST(LoadRun, TellsALostToken) {
  const LoadResult result = Load(kStreamHead + Event("a", "7") + Event("c", "9") + kEnd + kDone);
  EXPECT_EQ(result.complete, 0);
  EXPECT_EQ(result.faults, 2);  // one for each client
  EXPECT_NE(result.first_faults.at(0).find("token 1 is 9, but 8"), std::string::npos);
}

TEST(LoadRun, TellsAStreamThatBreaksOff) {
  EXPECT_EQ(Load(kStreamHead + Event("a", "7")).faults, 2);
  EXPECT_EQ(Load("HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno").faults, 2);
  EXPECT_EQ(Load("").faults, 2);
}

TEST(LoadRun, ARefusalNeedsRetryAfter) {
  const std::string head = "HTTP/1.1 429 Full\r\nContent-Length: 0\r\n";
  const LoadResult good = Load(head + "Retry-After: 1\r\n\r\n");
  EXPECT_EQ(good.refused, 2);
  EXPECT_EQ(good.faults, 0);
  EXPECT_EQ(good.refusal.count(), 2);
  EXPECT_EQ(Load(head + "\r\n").faults, 2);
}

TEST(LoadRun, ClientsLeaveInTheMiddle) {
  const LoadResult result = Load(kStreamHead + kStream, {.disconnect_fraction = 1});
  EXPECT_EQ(result.disconnected, 6);
  EXPECT_EQ(result.complete, 0);
  EXPECT_EQ(result.faults, 0);
}

TEST(LoadRun, AMalformedRequestMustNotSucceed) {
  EXPECT_EQ(Load(kStreamHead + kStream, {.malformed_fraction = 1}).faults, 2);
  const LoadResult refused =
      Load("HTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n", {.malformed_fraction = 1});
  EXPECT_EQ(refused.faults, 0);
  EXPECT_EQ(refused.statuses, (std::map<int, int64_t>{{400, 6}}));
}

TEST(ServerAddress, IsOnThisMachine) {
  EXPECT_EQ(ServerAddress::OfUrl("http://localhost:80/")->Url(), "http://127.0.0.1:80");
  for (const std::string_view url :
       {"https://127.0.0.1:80", "http://127.0.0.1", "http://8.8.8.8:80", "http://127.0.0.1:0",
        "http://127.0.0.1:x"}) {
    EXPECT_FALSE(ServerAddress::OfUrl(url)) << url;
  }
}

}  // namespace
}  // namespace halfbyte
