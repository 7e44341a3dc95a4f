// The inputs of the Checkpoint ops: variables in groups, and the pieces of
// tables in them.

#ifndef TF_SYNCREP_CC_KERNELS_CHECKPOINT_INPUTS_H_
#define TF_SYNCREP_CC_KERNELS_CHECKPOINT_INPUTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf_syncrep/cc/tf/table_pieces.h"
#include "tf_syncrep/cc/tf/table_snapshot.h"

namespace tf_syncrep {

struct CheckpointInputs {
  std::vector<std::vector<HeldVariable>> groups;
  std::vector<TablePiece> pieces;
  std::vector<std::pair<std::string, VariableRef>> wholes;
};

// Reads the inputs that CheckpointBegin and CheckpointRestore have in common,
// and those of their counterparts for reference variables.
absl::Status ReadCheckpointInputs(tensorflow::OpKernelContext* ctx,
                                  CheckpointInputs* inputs);

absl::Status ReadNames(tensorflow::OpKernelContext* ctx, absl::string_view name,
                       int64_t num, std::vector<std::string>* names);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_CHECKPOINT_INPUTS_H_
