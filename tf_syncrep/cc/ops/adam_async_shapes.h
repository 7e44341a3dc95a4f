// What the shape functions of ops with AdamAsync's inputs share.

#ifndef TF_SYNCREP_CC_OPS_ADAM_ASYNC_SHAPES_H_
#define TF_SYNCREP_CC_OPS_ADAM_ASYNC_SHAPES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_syncrep/cc/ops/adam_async_inputs.h"
#include "tf_syncrep/cc/ops/update_shapes.h"

namespace tf_syncrep {

// Merges the shapes of var, m and v into `shape`, and checks those of powers
// and hyper-parameters.
template <bool kIsResource>
absl::Status CheckVariables(tensorflow::shape_inference::InferenceContext* c,
                            tensorflow::shape_inference::ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(CheckSlotType(*c));
  *shape = VariableShape<kIsResource>(c, kVar);
  for (const AdamAsyncInput slot : {kM, kV}) {
    TF_RETURN_IF_ERROR(MergeShape(c, kAdamAsyncInputNames[slot],
                                  VariableShape<kIsResource>(c, slot), shape));
  }
  for (const AdamAsyncInput power : {kBeta1Power, kBeta2Power}) {
    TF_RETURN_IF_ERROR(CheckOneElement(c, kAdamAsyncInputNames[power],
                                       VariableShape<kIsResource>(c, power)));
  }
  for (const AdamAsyncInput scalar : {kLr, kBeta1, kBeta2, kEpsilon}) {
    TF_RETURN_IF_ERROR(
        CheckRank(c, kAdamAsyncInputNames[scalar], scalar, 0, "scalar"));
  }
  return absl::OkStatus();
}

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_ADAM_ASYNC_SHAPES_H_
