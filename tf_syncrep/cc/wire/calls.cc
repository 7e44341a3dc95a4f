#include "tf_syncrep/cc/wire/calls.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/logging.h"
#include "tf_syncrep/cc/lib/mutex.h"
#include "tf_syncrep/cc/lib/wire/frame.h"

namespace tf_syncrep {
namespace wire {
namespace {

using tensorflow::CallOptions;
using tensorflow::StatusCallback;
using tensorflow::protobuf::MessageLite;

std::unique_ptr<Body> MakeText(std::string_view, uint64_t size) {
  try {
    return size > kMostOfACall ? nullptr : std::make_unique<TextBody>(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The number of a request, which is known only when it is under way, while it
// may be cancelled before.
class Number {
 public:
  // Returns whether it was cancelled.
  bool Set(uint64_t id) {
    MutexLock lock(mu_);
    id_ = id;
    return is_cancelled_;
  }
  // Returns zero if it is not known.
  uint64_t Cancel() {
    MutexLock lock(mu_);
    is_cancelled_ = true;
    return id_;
  }

 private:
  Mutex mu_;
  uint64_t id_ = 0;
  bool is_cancelled_ = false;
};

}  // namespace

void NoteRequest(Method method, const std::string& task) {
  // The program does not change its environment.
  static const bool is_logged =
      std::getenv("TF_SYNCREP_LOG_CALLS") !=  // NOLINT(concurrency-mt-unsafe)
      nullptr;
  if (is_logged) {
    LOG(INFO) << "grpc+tfs asks " << task << ": " << static_cast<int>(method);
  }
}

std::string WriteStatus(const absl::Status& status) {
  // Payloads say whether an error came of another; what is too long is cut off,
  // the message first.
  std::string meta;
  const absl::string_view message = status.message().substr(0, kMaxMeta / 2);
  PutText({message.data(), message.size()}, &meta);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    std::string both;
    PutText({url.data(), url.size()}, &both);
    PutText(std::string(payload), &both);
    if (meta.size() + both.size() <= kMaxMeta) {
      meta += both;
    }
  });
  return meta;
}

absl::Status StatusOf(const Answer& answer, const std::string& task) {
  const std::string words = absl::StrCat(
      "\nAdditional GRPC error information from remote target ", task);
  const absl::string_view reason(answer.meta.data(), answer.meta.size());
  if (answer.how == Answer::How::kLost) {
    return absl::UnavailableError(absl::StrCat(reason, words));
  }
  if (answer.how == Answer::How::kCancelled) {
    return absl::CancelledError("the call was cancelled");
  }
  if (answer.code == 0) {
    return absl::OkStatus();
  }
  std::string_view meta = answer.meta;
  std::string message;
  GetText(&meta, &message);
  absl::Status status(static_cast<absl::StatusCode>(answer.code),
                      absl::StrCat(message, words));
  std::string url;
  std::string payload;
  while (GetText(&meta, &url) && GetText(&meta, &payload)) {
    status.SetPayload(url, absl::Cord(payload));
  }
  return status;
}

void Call(const Local& local, const Hub::ConnectionPtr& connection,
          const std::string& task, Method method, CallOptions* options,
          const MessageLite& request, MessageLite* response,
          StatusCallback done) {
  NoteRequest(method, task);
  const auto number = std::make_shared<Number>();
  if (options != nullptr) {
    options->SetCancelCallback([hub = local.hub, connection, number] {
      // Not here: the lock of the options is held.
      if (const uint64_t id = number->Cancel()) {
        hub->StopSoon(connection, id);
      }
    });
  }
  const uint64_t id = connection->Ask(
      static_cast<uint8_t>(method), {},
      OutBody::Of(request.SerializeAsString()), MakeText,
      [task, options, response, done = std::move(done)](Answer answer) {
        if (options != nullptr) {
          options->ClearCancelCallback();
        }
        absl::Status status = StatusOf(answer, task);
        if (status.ok()) {
          const bool is_read =
              answer.body == nullptr
                  ? response->ParseFromString("")
                  : response->ParseFromString(
                        static_cast<TextBody&>(*answer.body).text());
          if (!is_read) {
            status = absl::InternalError(
                absl::StrCat("the answer of ", task, " cannot be read"));
          }
        }
        done(status);
      });
  if (number->Set(id)) {
    local.hub->StopSoon(connection, id);
  }
}

}  // namespace wire
}  // namespace tf_syncrep
