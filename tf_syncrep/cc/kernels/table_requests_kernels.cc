// The kernel that finds which keys a batch needs. It checks its inputs, calls
// cc/lib/table/key_requests, and returns the result.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/batch_ids.h"
#include "tf_syncrep/cc/lib/table/key_requests.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class TableRequestsOp final : public OpKernel {
 public:
  explicit TableRequestsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_of_feature", &table_of_feature_));
    OP_REQUIRES(ctx,
                static_cast<int>(table_of_feature_.size()) == ctx->num_inputs(),
                absl::InvalidArgumentError(absl::StrCat(
                    "table_of_feature must be of ", ctx->num_inputs(),
                    " features, but is of ", table_of_feature_.size())));
    for (const int64_t table : table_of_feature_) {
      OP_REQUIRES(ctx, table >= 0 && table < num_tables_,
                  absl::InvalidArgumentError(
                      absl::StrCat("table_of_feature must be in [0, ",
                                   num_tables_, "), but one is ", table)));
    }
    OP_REQUIRES(
        ctx, num_tables_ <= std::numeric_limits<int32_t>::max() / num_shards_,
        absl::InvalidArgumentError(absl::StrCat(
            "num_shards and num_tables must have a product below 2^31, but "
            "are ",
            num_shards_, " and ", num_tables_)));
  }

  void Compute(OpKernelContext* ctx) override {
    int64_t num_ids;
    OP_REQUIRES_OK(ctx, CountIds(ctx, &num_ids));
    std::vector<FeatureKeys> features;
    features.reserve(ctx->num_inputs());
    for (int f = 0; f < ctx->num_inputs(); ++f) {
      features.push_back(
          {IdsOf(ctx->input(f)), static_cast<int32_t>(table_of_feature_[f])});
    }
    DeviceSharder sharder(ctx);
    KeyRequests keys;
    OP_REQUIRES(ctx, keys.Find(features, num_tables_, num_shards_, sharder),
                OutOfMemory(absl::StrCat("the keys of ", num_ids, " ids"),
                            24 * num_ids));
    OpOutputList requests;
    OP_REQUIRES_OK(ctx, ctx->output_list("requests", &requests));
    for (int shard = 0; shard < requests.size(); ++shard) {
      Tensor* output;
      OP_REQUIRES_OK(
          ctx, requests.allocate(shard, TensorShape({keys.request_size(shard)}),
                                 &output));
      keys.WriteRequest(shard, Data<int64_t>(*output));
    }
    OP_REQUIRES_OK(ctx, WritePlaces(ctx, keys));
  }

 private:
  int64_t num_shards_;
  int64_t num_tables_;
  std::vector<int64_t> table_of_feature_;
};

REGISTER_KERNEL_BUILDER(
    Name("Syncrep>TableRequests").Device(tensorflow::DEVICE_CPU),
    TableRequestsOp);

}  // namespace
}  // namespace tf_syncrep
