#include "http/request_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace halfbyte {
namespace {

using State = RequestParser::State;

struct Outcome {
  State state;
  HttpRequest request;
  HttpFault fault;
  size_t taken = 0;
};

// Offers bytes[0, cut), then all; and keeps to the end of the head and to the end of the request.
Outcome Parse(const std::string& bytes, size_t cut, const RequestLimits& limits = {}) {
  RequestParser parser(limits);
  size_t taken = 0;
  for (const size_t end : {std::min(cut, bytes.size()), bytes.size()}) {
    for (bool head = parser.state() == State::kHead; true; head = false) {
      if (parser.state() == State::kDone || parser.state() == State::kFault) break;
      taken += parser.Push(std::string_view(bytes).substr(taken, end - taken));
      if (!head || parser.state() != State::kBody) break;
    }
  }
  return {parser.state(), parser.request(), parser.fault(), taken};
}

// However the bytes are cut.
Outcome Parse(const std::string& bytes, const RequestLimits& limits = {}) {
  const Outcome whole = Parse(bytes, bytes.size(), limits);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    const Outcome parts = Parse(bytes, cut, limits);
    EXPECT_EQ(parts.state, whole.state) << "cut at " << cut << ": " << bytes;
    EXPECT_EQ(parts.fault.status, whole.fault.status) << "cut at " << cut;
    EXPECT_EQ(parts.request.body, whole.request.body) << "cut at " << cut;
    EXPECT_EQ(parts.request.path, whole.request.path) << "cut at " << cut;
    if (whole.state == State::kDone) {
      EXPECT_EQ(parts.taken, whole.taken) << "cut at " << cut;
    }
  }
  return whole;
}

int FaultOf(const std::string& bytes, const RequestLimits& limits = {}) {
  const Outcome outcome = Parse(bytes, limits);
  return outcome.state == State::kFault ? outcome.fault.status : 0;
}

TEST(RequestParser, SplitsARequestIntoItsParts) {
  const Outcome outcome = Parse(
      "POST /v1/models/a%2Fb%20c?x=1?y HTTP/1.1\r\nHost: here\r\nX-Two:  spaced \t\r\n"
      "Content-Length: 5\r\nx-request-id: my.id_1-2\r\n\r\nhelloGET /");
  ASSERT_EQ(outcome.state, State::kDone) << outcome.fault.message;
  const HttpRequest& request = outcome.request;
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/models/a/b c");
  EXPECT_EQ(request.query, "x=1?y");
  EXPECT_EQ(request.fields.Find("x-TWO"), "spaced");
  EXPECT_EQ(request.fields.Find("x-three"), std::nullopt);
  EXPECT_EQ(request.content_length, 5);
  EXPECT_EQ(request.body, "hello");
  EXPECT_EQ(request.id, "my.id_1-2");
}

TEST(RequestParser, StopsAfterTheHeadAndAfterTheRequest) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n";
  RequestParser parser({});
  EXPECT_EQ(parser.Push(head + "abGET"), head.size());
  EXPECT_EQ(parser.state(), State::kBody);
  EXPECT_EQ(parser.Push("abGET"), 2u);
  EXPECT_EQ(parser.state(), State::kDone);
}

TEST(RequestParser, JoinsChunksAndForgetsTrailers) {
  const Outcome outcome = Parse(
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nX-Late: 1\r\n\r\nGET");
  ASSERT_EQ(outcome.state, State::kDone) << outcome.fault.message;
  EXPECT_EQ(outcome.request.body, "abc0123456789");
  EXPECT_TRUE(outcome.request.has_body);
  EXPECT_EQ(outcome.request.content_length, std::nullopt);
  EXPECT_EQ(outcome.request.fields.Find("X-Late"), std::nullopt);
}

TEST(RequestParser, TheLastChunkMayComeByteByByte) {
  RequestParser parser({});
  parser.Push("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string body = "1\r\na\r\n0\r\n\r\n";
  size_t taken = 0;
  for (size_t end = 1; end <= body.size(); ++end) {
    EXPECT_EQ(parser.state(), State::kBody);
    taken += parser.Push(std::string_view(body).substr(taken, end - taken));
  }
  EXPECT_EQ(parser.state(), State::kDone);
  EXPECT_EQ(parser.request().body, "a");
}

TEST(RequestParser, TakesUrlsInEveryFormAServerMustTake) {
  const auto path_of = [](const std::string& line) {
    return Parse(line + " HTTP/1.1\r\nHost: h\r\n\r\n").request.path;
  };
  EXPECT_EQ(path_of("GET /a"), "/a");
  EXPECT_EQ(path_of("GET http://h:80/a?b"), "/a");
  EXPECT_EQ(path_of("GET HTTPS://h"), "/");
  EXPECT_EQ(path_of("GET http://h?b"), "/");
  EXPECT_EQ(path_of("OPTIONS *"), "*");
  EXPECT_EQ(path_of("\r\n\r\nGET /after/empty/lines"), "/after/empty/lines");
  for (const std::string line : {"GET a", "GET *", "CONNECT h:80", "GET /%4", "GET /%zz"}) {
    EXPECT_EQ(FaultOf(line + " HTTP/1.1\r\nHost: h\r\n\r\n"), 400) << line;
  }
}

TEST(RequestParser, RefusesWhatIsNotHttp) {
  for (const std::string bytes : {
           "\x16\x03\x01 hello TLS\r\n\r\n",
           "GET\r\n\r\n",
           "GET /\r\n\r\n",
           "GET / HTTP/2.0\r\nHost: h\r\n\r\n",
           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
           "GET / HTTP/1.2\r\nHost: h\r\n\r\n",
           "GET / HTTP/0.9\r\n\r\n",
           "GET / http/1.1\r\nHost: h\r\n\r\n",
           "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET / HTTP/1.1\nHost: h\n\n",
           "G\xc3\x84T / HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: h\r\nName : space\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: h\r\n: no name\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: h\r\nX: a\x01\x62\r\n\r\n",
           "GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
           "\r\n\rGET / HTTP/1.1\r\nHost: h\r\n\r\n",
           "\r\n\x08\r\n\r",
       }) {
    EXPECT_EQ(FaultOf(bytes), 400) << bytes;
  }
}

TEST(RequestParser, RefusesWhatTwoServersCouldReadDifferently) {
  const std::string line = "POST / HTTP/1.1\r\nHost: h\r\n";
  for (const std::string fields : {
           "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n",
           "Content-Length: 1\r\nContent-Length: 2\r\n",
           "Content-Length: 1\r\nContent-Length: 1\r\n",
           "Content-Length: 1, 1\r\n",
           "Content-Length: -1\r\n",
           "Content-Length: +1\r\n",
           "Content-Length: 0x1\r\n",
           "Content-Length: \r\n",
           "Content-Length: 18446744073709551616\r\n",
           "Transfer-Encoding: gzip\r\n",
           "Transfer-Encoding: gzip, chunked\r\n",
           "Transfer-Encoding: chunked, chunked\r\n",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
           "Transfer-Encoding: xchunked\r\n",
           "Host: other\r\n",
           "X: a\r\n b\r\n",
           "X: a\r\n\tContent-Length: 1\r\n",
       }) {
    EXPECT_EQ(FaultOf(line + fields + "\r\n"), 400) << fields;
  }
  EXPECT_EQ(FaultOf("POST / HTTP/1.1\r\n\r\n"), 400) << "no Host";
  EXPECT_EQ(FaultOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(Parse("GET / HTTP/1.0\r\n\r\n").state, State::kDone) << "needs no Host";
}

TEST(RequestParser, RefusesBrokenChunks) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string body :
       {"x\r\n\r\n", "-1\r\na\r\n", "2\r\nabc\r\n0\r\n\r\n", "1\nab\r\n", "FFFFFFFFFFFFFFFFF\r\n",
        "1 x\r\na\r\n", "0\r\nbroken trailer\r\n\r\n"}) {
    EXPECT_EQ(FaultOf(head + body), 400) << body;
  }
}

TEST(RequestParser, KeepsEachLimitToTheByte) {
  const RequestLimits limits = {.head_bytes = 100, .target_bytes = 20, .body_bytes = 10};
  const auto head_of = [](size_t size) {
    const std::string start = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
    return start + std::string(size - start.size() - 4, 'x') + "\r\n\r\n";
  };
  EXPECT_EQ(FaultOf(head_of(100), limits), 0);
  EXPECT_EQ(FaultOf(head_of(101), limits), 431);
  const auto target_of = [](size_t size) {
    return "GET /" + std::string(size - 1, 'u') + " HTTP/1.1\r\nHost: h\r\n\r\n";
  };
  EXPECT_EQ(FaultOf(target_of(20), limits), 0);
  EXPECT_EQ(FaultOf(target_of(21), limits), 414);
  EXPECT_EQ(FaultOf(target_of(500), limits), 414) << "longer than the head may be";
  EXPECT_EQ(FaultOf(std::string(500, 'G'), limits), 400);
  const auto body_of = [](size_t size) {
    return fmt::format("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{}", size,
                       std::string(size, 'b'));
  };
  EXPECT_EQ(FaultOf(body_of(10), limits), 0);
  EXPECT_EQ(FaultOf(body_of(11), limits), 413);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(FaultOf(chunked + "6\r\nabcdef\r\n4\r\nabcd\r\n0\r\n\r\n", limits), 0);
  EXPECT_EQ(FaultOf(chunked + "6\r\nabcdef\r\n5\r\nabcde\r\n0\r\n\r\n", limits), 413);
  EXPECT_EQ(FaultOf(chunked + "FFFFFFFFFFFFFFFF\r\n", limits), 413);
}

TEST(RequestParser, AChunkThatDoesNotBeginWithItsSizeIsRefusedAtOnce) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto state_after = [&](const std::string& bytes) {
    RequestParser parser({});
    const std::string all = head + bytes;
    size_t taken = 0;
    while (parser.state() == State::kHead) taken += parser.Push(all);
    taken += parser.Push(std::string_view(all).substr(taken));
    return parser.state();
  };
  const std::string chunk = "3\r\nabc";
  for (const std::string bad : {"z", "zz\r\n", ";", "\r", "g", "-1", "0x1", "1z", "zzzzzzzzzz"}) {
    EXPECT_EQ(state_after(bad), State::kFault) << bad;
    EXPECT_EQ(state_after(chunk + "\r\n" + bad), State::kFault) << bad;
  }
  EXPECT_EQ(state_after(chunk + "4"), State::kFault);
  EXPECT_EQ(state_after(chunk + "\ra"), State::kFault);
  for (const std::string good :
       {"", "a", "F\r", "0\r\n", "0\r\n\r", "0000001", "1 ", "1;", "1\t"}) {
    EXPECT_EQ(state_after(good), State::kBody) << good;
    EXPECT_EQ(state_after(chunk + "\r\n" + good), State::kBody) << good;
  }
  for (const std::string part : {"", "\r", "\r\n"})
    EXPECT_EQ(state_after(chunk + part), State::kBody);
  EXPECT_EQ(state_after("3\r\nzz"), State::kBody);  // inside a chunk anything goes
}

TEST(RequestParser, AFloodOfManySmallFieldsIsOneHead) {
  std::string flood = "GET / HTTP/1.1\r\nHost: h\r\n";
  RequestParser parser({.head_bytes = 1000});
  size_t taken = 0;
  for (int i = 0; i < 1000 && parser.state() == State::kHead; ++i) {
    flood += "a: b\r\n";
    taken += parser.Push(std::string_view(flood).substr(taken));
  }
  EXPECT_EQ(parser.fault().status, 431);
  EXPECT_LT(flood.size(), 1020u);
}

TEST(RequestParser, AnEndlessChunkHeadOrTrailerIsRefused) {
  for (const std::string part : {"1;ext=", "0\r\nX-Trailer: "}) {
    RequestParser parser({.head_bytes = 200});
    parser.Push("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    ASSERT_EQ(parser.state(), State::kBody);
    std::string bytes = part;
    size_t taken = 0;
    while (parser.state() == State::kBody && bytes.size() < 1000) {
      taken += parser.Push(std::string_view(bytes).substr(taken));
      bytes += "xxxxxxxxxx";
    }
    EXPECT_EQ(parser.fault().status, 431) << part;
  }
}

TEST(RequestParser, TheLengthLimitComesAfterTheHeadAndBeforeTheBody) {
  RequestParser parser({.body_bytes = 10});
  parser.Push("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n");
  EXPECT_EQ(parser.state(), State::kBody) << "a handler sees the head first";
  parser.Push("");
  EXPECT_EQ(parser.fault().status, 413);
}

TEST(RequestParser, GivesAnIdToWhoBringsNoneOrAStrangeOne) {
  const auto id_of = [](const std::string& id) {
    return Parse("GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: " + id + "\r\n\r\n").request.id;
  };
  EXPECT_EQ(id_of("a-Z_0.9"), "a-Z_0.9");
  EXPECT_EQ(id_of(std::string(128, 'x')), std::string(128, 'x'));
  EXPECT_NE(id_of(std::string(129, 'x')), std::string(129, 'x'));
  for (const std::string bad : {"", "a b", "a\"b", "\xc3\xa4"}) {
    EXPECT_EQ(id_of(bad).size(), 32u);
    EXPECT_NE(id_of(bad), id_of(bad));
  }
}

TEST(RequestParser, KnowsWhoWantsToStay) {
  const auto stays = [](const std::string& version, const std::string& connection) {
    RequestParser parser({});
    parser.Push("GET / HTTP/" + version + "\r\nHost: h\r\nConnection: " + connection + "\r\n\r\n");
    return parser.keep_alive();
  };
  EXPECT_TRUE(stays("1.1", ""));
  EXPECT_FALSE(stays("1.1", "Close"));
  EXPECT_FALSE(stays("1.0", ""));
  EXPECT_TRUE(stays("1.0", "Keep-Alive"));
}

TEST(HttpFields, ContentTypesOfJson) {
  for (const char* yes : {"application/json", "Application/JSON", "application/json; charset=utf-8",
                          "application/json;charset=UTF-8", "application/json ; charset=\"utf-8\"",
                          "application/json;"}) {
    EXPECT_TRUE(IsJsonContentType(yes)) << yes;
  }
  for (const char* no : {"", "text/plain", "application/jsonx", "application/json; charset=latin1",
                         "application/json, application/json", "application/json; boundary=x"}) {
    EXPECT_FALSE(IsJsonContentType(no)) << no;
  }
}

TEST(ClientAddress, IsWhatOneOwnerHasOfAPeer) {
  EXPECT_EQ(ClientAddress("127.0.0.1:50412"), "127.0.0.1");
  EXPECT_EQ(ClientAddress("[2001:db8:0:1:2:3:4:5]:80"), "2001:db8:0:1::");
  EXPECT_EQ(ClientAddress("[::1]:80"), "::");
  EXPECT_EQ(ClientAddress("[::ffff:10.0.0.1]:80"), "10.0.0.1");
  EXPECT_EQ(ClientAddress("unix"), "unix");
  EXPECT_EQ(ClientAddress("gone"), "gone");
}

}  // namespace
}  // namespace halfbyte
