// The shape functions of the ops that update a variable by a rule.

#ifndef TF_SYNCREP_CC_OPS_RULE_SHAPES_H_
#define TF_SYNCREP_CC_OPS_RULE_SHAPES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_syncrep {

// Of an op with a dense gradient for resource or ref variables.
template <bool kIsResource>
absl::Status DenseShape(tensorflow::shape_inference::InferenceContext* c);

// The same for a sparse gradient.
template <bool kIsResource>
absl::Status SparseShape(tensorflow::shape_inference::InferenceContext* c);

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_OPS_RULE_SHAPES_H_
