#include "tf_syncrep/cc/wire/function_room.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/process_function_library_runtime.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/attr_value_util.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_syncrep {
namespace wire {
namespace {

// One more than a power of two: there is room for nearly as many again.
constexpr int64_t kNumFunctions = 1025;

}  // namespace

absl::Status MakeFunctionRoom(tensorflow::EagerContext* context,
                              const std::string& task) {
  tensorflow::FunctionDef function;
  function.mutable_signature()->set_name("__tf_syncrep_room");
  TF_RETURN_IF_ERROR(context->AddFunctionDef(function));
  tensorflow::FunctionLibraryRuntime::InstantiateOptions options;
  options.target = absl::StrCat(task, "/device:CPU:0");
  for (int64_t i = 0; i < kNumFunctions; ++i) {
    // With another attribute it is another function.
    tensorflow::AttrValueMap attrs;
    tensorflow::SetAttrValue(i, &attrs["number"]);
    tensorflow::FunctionLibraryRuntime::Handle handle;
    TF_RETURN_IF_ERROR(context->pflr()->Instantiate(
        function.signature().name(), tensorflow::AttrSlice(&attrs), options,
        &handle));
  }
  return absl::OkStatus();
}

}  // namespace wire
}  // namespace tf_syncrep
