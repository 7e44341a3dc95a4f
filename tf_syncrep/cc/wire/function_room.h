// Room for the functions of other tasks.

#ifndef TF_SYNCREP_CC_WIRE_FUNCTION_ROOM_H_
#define TF_SYNCREP_CC_WIRE_FUNCTION_ROOM_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/eager/context.h"

namespace tf_syncrep {
namespace wire {

// Has a coordinator's context know a thousand functions of `task`, before it
// has threads.
//
// TensorFlow (2.15 to 2.22) keeps what it knows of other tasks' functions in a
// vector, takes an element's address under a lock, and reads it without
// (EagerClusterFunctionLibraryRuntime::Run). Where another thread calls its
// function for the first time just then, the vector may move: the call reads
// memory that is freed. It fails, or the coordinator ends by a signal. As it
// doubles each time, it moves often while a training begins, and then has room.
absl::Status MakeFunctionRoom(tensorflow::EagerContext* context,
                              const std::string& task);

}  // namespace wire
}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_WIRE_FUNCTION_ROOM_H_
