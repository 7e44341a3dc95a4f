#include "tf_syncrep/cc/wire/calls.h"

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/mutex.h"
#include "tensorflow/core/platform/threadpool.h"

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
    tensorflow::mutex_lock lock(mu_);
    id_ = id;
    return is_cancelled_;
  }
  // Returns zero if it is not known.
  uint64_t Cancel() {
    tensorflow::mutex_lock lock(mu_);
    is_cancelled_ = true;
    return id_;
  }

 private:
  tensorflow::mutex mu_;
  uint64_t id_ = 0;
  bool is_cancelled_ = false;
};

}  // namespace

absl::Status StatusOf(const Answer& answer, const std::string& task) {
  if (answer.is_lost) {
    return tensorflow::errors::Unavailable(
        answer.meta, "\nAdditional GRPC error information from remote target ",
        task);
  }
  return answer.code == 0
             ? absl::OkStatus()
             : absl::Status(static_cast<absl::StatusCode>(answer.code),
                            answer.meta);
}

void Call(const Local& local, const Hub::ConnectionPtr& connection,
          const std::string& task, Method method, CallOptions* options,
          const MessageLite& request, MessageLite* response,
          StatusCallback done) {
  const auto number = std::make_shared<Number>();
  if (options != nullptr) {
    // Not here: the lock of the options is held.
    options->SetCancelCallback([local, connection, number] {
      local.env->compute_pool->Schedule([connection, number] {
        if (const uint64_t id = number->Cancel()) {
          connection->Cancel(id);
        }
      });
    });
  }
  const uint64_t id = connection->Ask(
      static_cast<uint8_t>(method), {}, OutBody::Of(request.SerializeAsString()),
      MakeText,
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
            status = tensorflow::errors::Internal(
                "the answer of ", task, " cannot be read");
          }
        }
        done(status);
      });
  if (number->Set(id)) {
    connection->Cancel(id);
  }
}

}  // namespace wire
}  // namespace tf_syncrep
