// What tasks ask of each other over the wire.

#ifndef TF_SYNCREP_CC_WIRE_METHODS_H_
#define TF_SYNCREP_CC_WIRE_METHODS_H_

#include <cstdint>

namespace tf_syncrep {
namespace wire {

enum class Method : uint8_t {
  kRecvTensor = 1,  // meta: see tensor_frames.h
  // The rest have a protocol buffer as body, and one as the answer's.
  kCreateContext,
  kUpdateContext,
  kWaitQueueDone,
  kKeepAlive,
  kCloseContext,
  kEnqueue,
  kRunComponentFunction,
  kRunGraph,
  kCleanupGraph,
};

// Changes with frames and methods.
inline constexpr int kVersion = 1;

// Protocol buffers are no larger.
inline constexpr uint64_t kMostOfACall = uint64_t{2} << 30;

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_METHODS_H_
