// Kernels that find the rows of keys and make rows for them: lookups, and
// imports of exported keys.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/call_op.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/kernels/table_request.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/memory_guard.h"
#include "tf_syncrep/cc/lib/rows/row_gather.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/lib/table/new_rows.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/head_room.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/locked_variables.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
#include "tf_syncrep/cc/tf/scalars.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using Access = LockedVariables::Access;

absl::Status OutOfMemoryFor(int64_t num_keys) {
  return OutOfMemory(absl::StrCat("a lookup of ", num_keys, " keys"),
                     32 * num_keys);
}

// A row's key and use, and its place in the index.
constexpr int64_t kRowBytesBesideVector = 28;

// Rows take memory when they are written for the first time, which must be
// refused before any are taken. `num_new` are the numbers of keys that are to
// get rows, table by table.
absl::Status CheckMemory(TableIndexResource* index,
                         const std::vector<int64_t>& num_new,
                         int64_t vector_bytes) {
  int64_t num_fresh = 0;
  std::vector<absl::string_view> names;
  for (size_t i = 0; i < num_new.size(); ++i) {
    const auto table = static_cast<int64_t>(i);
    const int64_t fresh = index->table(table).NumFresh(num_new[i]);
    num_fresh += fresh;
    if (fresh > 0) {
      names.push_back(index->options()[table].name);
    }
  }
  if (num_fresh == 0) {
    return absl::OkStatus();
  }
  const int64_t bytes = num_fresh * (vector_bytes + kRowBytesBesideVector);
  MemoryLeft left;
  if (MemoryGuard::OfProcess().TryTake(bytes, &left)) {
    return absl::OkStatus();
  }
  const auto megabytes = [](int64_t num) { return (num >> 20) + 1; };
  return absl::ResourceExhaustedError(absl::StrCat(
      "There is no memory for ", num_fresh, " more rows of ",
      absl::StrJoin(names, ", "), ", about ", megabytes(bytes),
      " MB without their slots: ", left.bytes >> 20, " of ", left.total >> 20,
      " MB are left, of which ", MemoryGuard::Reserve(left.total) >> 20,
      " must stay free. Use more parameter servers, or let rows be evicted "
      "(unused_for, or evict with a smaller max_rows)"));
}

constexpr int kVectors = 0;  // the place of this variable in a TablePart

template <typename T>
int64_t VectorBytes(const TablePart& part) {
  return part.tensor(kVectors).dim_size(1) * sizeof(T);
}

template <typename T, typename Out>
class TableFindOp final : public OpKernel {
 public:
  explicit TableFindOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("insert", &insert_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("head_rows", &head_rows_));
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
    TableRequest request;
    OP_REQUIRES_OK(ctx, request.Read(ctx->input(4), index->num_tables()));
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3,
                   insert_ ? Access::kShared : Access::kRead);
    part.Add(/*input=*/1, "vectors", DataTypeToEnum<T>::value);
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    OP_REQUIRES_OK(ctx, CheckMatrix(part.tensor(kVectors), "vectors"));
    const int64_t num_keys = request.num_keys();
    const int64_t width = part.tensor(kVectors).dim_size(1);
    Tensor* rows_output;
    Tensor values;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({num_keys}), &rows_output));
    OP_REQUIRES_OK(
        ctx, AllocateWithHeadRoom(ctx, DataTypeToEnum<Out>::value, head_rows_,
                                  num_keys, width, &values));
    auto* const rows = Data<int32_t>(*rows_output);
    bool is_same;
    do {
      OP_REQUIRES_OK(ctx, Find(ctx, index.get(), request, insert_, part, rows));
      is_same = true;
      const int64_t num_locks = part.num_locks();
      if (insert_) {
        OP_REQUIRES_OK(
            ctx, Insert(ctx, index.get(), request, &part, rows, &is_same));
      }
      // While nothing was locked, rows may have gone to other keys.
      if (is_same && part.num_locks() != num_locks) {
        OP_REQUIRES_OK(
            ctx, Find(ctx, index.get(), request, /*uses=*/false, part, rows));
      }
    } while (!is_same);
    DeviceSharder sharder(ctx);
    const Tensor& vectors = part.tensor(kVectors);
    GatherRows(Data<const LibType<T>>(vectors), vectors.dim_size(0), width,
               static_cast<const int32_t*>(rows), num_keys, MissingRows::kZeros,
               Data<LibType<Out>>(values), sharder);
    ctx->set_output(1, values);
  }

 private:
  static absl::Status Find(OpKernelContext* ctx, TableIndexResource* index,
                           const TableRequest& request, bool uses,
                           const TablePart& part, int32_t* rows) {
    DeviceSharder sharder(ctx);
    const TableColumns columns = part.columns();
    for (int64_t i = 0; i < index->num_tables(); ++i) {
      const int64_t begin = request.begin(i);
      bool has_memory;
      if (uses) {
        index->table(i).FindAndUse(columns, index->clock(),
                                   request.keys() + begin, request.size(i),
                                   rows + begin, sharder, &has_memory);
      } else {
        index->table(i).Find(columns, request.keys() + begin, request.size(i),
                             rows + begin, sharder, &has_memory);
      }
      if (!has_memory) {
        return OutOfMemoryFor(request.num_keys());
      }
    }
    return absl::OkStatus();
  }

  // Gives rows to keys that are admitted, as long as there are free rows.
  static absl::Status Insert(OpKernelContext* ctx, TableIndexResource* index,
                             const TableRequest& request, TablePart* part,
                             int32_t* rows, bool* is_same) {
    const int64_t num_keys = request.num_keys();
    std::vector<int64_t> num_new(index->num_tables());
    for (int64_t table = 0; table < index->num_tables(); ++table) {
      const int32_t* const begin = rows + request.begin(table);
      num_new[table] = std::count(begin, begin + request.size(table),
                                  DynamicTable::kAdmitted);
    }
    const int64_t num_all =
        std::accumulate(num_new.begin(), num_new.end(), int64_t{0});
    std::vector<int64_t> num_refused(index->num_tables());
    if (num_all > 0) {
      TF_RETURN_IF_ERROR(CheckMemory(index, num_new, VectorBytes<T>(*part)));
      NewRows new_rows(index);
      if (!new_rows.Allocate(num_all)) {
        return OutOfMemoryFor(num_keys);
      }
      for (int64_t table = 0; table < index->num_tables(); ++table) {
        const int64_t end = request.begin(table) + request.size(table);
        for (int64_t i = request.begin(table); i < end; ++i) {
          if (rows[i] == DynamicTable::kAdmitted) {
            new_rows.Append(ReadOnce(&request.keys()[i]), i);
            rows[i] = DynamicTable::kNoRow;
          }
        }
        if (!new_rows.Take(table, &num_refused[table])) {
          return OutOfMemoryFor(num_keys);
        }
      }
      TF_RETURN_IF_ERROR(part->Keep(ctx, kVectors, new_rows.free_rows(),
                                    new_rows.size(), is_same));
      if (!*is_same) {
        return absl::OkStatus();
      }
      auto* const vectors = part->template data<LibType<T>>(kVectors);
      DeviceSharder sharder(ctx);
      new_rows.Draw(part->tensor(kVectors).dim_size(1), vectors, sharder);
      if (!new_rows.Add(part->columns(), vectors, {index->clock(), 1}, rows,
                        sharder)) {
        return OutOfMemoryFor(num_keys);
      }
    }
    for (int64_t i = 0; i < index->num_tables(); ++i) {
      const int32_t* const begin = rows + request.begin(i);
      index->table(i).CountWithoutRow(
          std::count(begin, begin + request.size(i), DynamicTable::kNoRow),
          num_refused[i]);
    }
    return absl::OkStatus();
  }

  bool insert_ = false;
  int64_t head_rows_ = 0;
};

template <typename T>
class TableImportOp final : public OpKernel {
 public:
  explicit TableImportOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table", &table_));
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupHandle(ctx, &index, "index"));
    OP_REQUIRES_OK(ctx, CheckTable(*index, table_));
    const std::string& name = index->options()[table_].name;
    const int64_t size = ctx->input(4).NumElements();
    for (const auto& [input, input_name] :
         {std::pair(4, "row_keys"), {5, "last_uses"}, {6, "counts"}}) {
      const TensorShape& shape = ctx->input(input).shape();
      OP_REQUIRES(ctx, shape.dims() == 1 && shape.dim_size(0) == size,
                  absl::InvalidArgumentError(
                      absl::StrCat(input_name, " must be a vector of ", size,
                                   " elements, as row_keys has, but has shape ",
                                   shape.DebugString())));
    }
    Array<int64_t> keys;
    Array<RowUse> uses;
    OP_REQUIRES(ctx, keys.Allocate(size) && uses.Allocate(size),
                OutOfMemoryFor(size));
    for (int64_t i = 0; i < size; ++i) {
      keys[i] = ReadOnce(Data<const int64_t>(ctx->input(4)) + i);
      uses[i] = {ReadOnce(Data<const int32_t>(ctx->input(5)) + i),
                 ReadOnce(Data<const int32_t>(ctx->input(6)) + i)};
      OP_REQUIRES(ctx, uses[i].last_use >= kNow && uses[i].count >= 1,
                  absl::InvalidArgumentError(absl::StrCat(
                      "last_uses must be at least -1 and counts at least 1. "
                      "Received: last use ",
                      uses[i].last_use, " and count ", uses[i].count,
                      " of key ", keys[i], " of table ", name)));
    }
    OP_REQUIRES_OK(ctx, CheckDistinct(ctx, keys, name));
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3, Access::kShared);
    part.Add(/*input=*/1, "vectors", DataTypeToEnum<T>::value);
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    OP_REQUIRES_OK(ctx, CheckMatrix(part.tensor(kVectors), "vectors"));
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({size}), &output));
    bool is_same;
    do {
      OP_REQUIRES_OK(ctx, Import(ctx, index.get(), keys, uses, &part,
                                 Data<int32_t>(*output), &is_same));
    } while (!is_same);
  }

 private:
  // A last use: of a key that keeps its use or, if it has no row, is used now.
  static constexpr int32_t kNow = -1;

  static absl::Status CheckDistinct(OpKernelContext* ctx,
                                    const Array<int64_t>& keys,
                                    const std::string& name) {
    const int64_t size = keys.size();
    Array<RowOccurrence<uint64_t>> sorted;
    Array<RowOccurrence<uint64_t>> spare;
    if (!sorted.Allocate(size) || !spare.Allocate(size)) {
      return OutOfMemoryFor(size);
    }
    for (int64_t i = 0; i < size; ++i) {
      sorted[i] = {static_cast<uint64_t>(keys[i]), 0};
    }
    DeviceSharder sharder(ctx);
    const auto* const by_key =
        SortByRow(sorted.data(), spare.data(), size, sharder);
    if (by_key == nullptr) {
      return OutOfMemoryFor(size);
    }
    for (int64_t i = 1; i < size; ++i) {
      if (by_key[i].row == by_key[i - 1].row) {
        return absl::InvalidArgumentError(
            absl::StrCat("row_keys must be different keys. Received: ",
                         static_cast<int64_t>(by_key[i].row), " of table ",
                         name, " more than once"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Import(OpKernelContext* ctx, TableIndexResource* index,
                      const Array<int64_t>& keys, const Array<RowUse>& uses,
                      TablePart* part, int32_t* rows, bool* is_same) const {
    DynamicTable& table = index->table(table_);
    const int64_t size = keys.size();
    DeviceSharder sharder(ctx);
    bool has_memory;
    table.Find(part->columns(), keys.data(), size, rows, sharder, &has_memory);
    NewRows new_rows(index);
    if (!has_memory || !new_rows.Allocate(size)) {
      return OutOfMemoryFor(size);
    }
    for (int64_t i = 0; i < size; ++i) {
      if (rows[i] < 0) {
        new_rows.Append(keys[i], i);
      }
    }
    int64_t num_refused = 0;
    std::vector<int64_t> num_new(index->num_tables());
    num_new[table_] =
        std::count_if(rows, rows + size, [](int32_t row) { return row < 0; });
    TF_RETURN_IF_ERROR(CheckMemory(index, num_new, VectorBytes<T>(*part)));
    if (!new_rows.Take(table_, &num_refused)) {
      return OutOfMemoryFor(size);
    }
    if (num_refused > 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the rows of table ", index->options()[table_].name,
          " must be enough for its keys. Received: ",
          new_rows.size() + num_refused, " new keys, where ", new_rows.size(),
          " of ", table.options().capacity, " rows are free"));
    }
    TF_RETURN_IF_ERROR(part->Keep(ctx, kVectors, new_rows.free_rows(),
                                  new_rows.size(), is_same));
    if (!*is_same) {
      return absl::OkStatus();
    }
    // First, since a last use before the clock's would count as settled.
    for (const RowUse& use : uses) {
      index->SetForward(use.last_use);
    }
    auto* const vectors = part->template data<LibType<T>>(kVectors);
    new_rows.Draw(part->tensor(kVectors).dim_size(1), vectors, sharder);
    if (!new_rows.Add(part->columns(), vectors, {index->clock(), 1}, rows,
                      sharder, /*were_seen=*/false)) {
      return OutOfMemoryFor(size);
    }
    for (int64_t i = 0; i < size; ++i) {
      // A key may have lost its row while room for kept rows was awaited.
      if (!SetUse(&table, part->columns(), keys[i], rows[i], uses[i])) {
        *is_same = false;
      }
    }
    return absl::OkStatus();
  }

  // Returns whether the row still has this key.
  static bool SetUse(DynamicTable* table, const TableColumns& columns,
                     int64_t key, int32_t row, RowUse use) {
    if (use.last_use != kNow) {
      return table->SetUse(columns, key, row, use);
    }
    int64_t present;
    return table->Read(columns, row, &present, &use) && present == key;
  }

  int64_t table_;
};

#define TF_SYNCREP_REGISTER_FIND(T, Out)                    \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>TableFind")         \
                              .Device(DEVICE_CPU)           \
                              .TypeConstraint<T>("dtype")   \
                              .TypeConstraint<Out>("Tout"), \
                          TableFindOp<T, Out>)
#define TF_SYNCREP_REGISTER(T)                             \
  TF_SYNCREP_REGISTER_FIND(T, T);                          \
  REGISTER_KERNEL_BUILDER(Name("Syncrep>TableImport")      \
                              .Device(DEVICE_CPU)          \
                              .TypeConstraint<T>("dtype"), \
                          TableImportOp<T>)

TF_SYNCREP_REGISTER_ALL_TYPES(TF_SYNCREP_REGISTER);
TF_SYNCREP_REGISTER_FIND(float, Eigen::half);
TF_SYNCREP_REGISTER_FIND(float, Eigen::bfloat16);

#undef TF_SYNCREP_REGISTER
#undef TF_SYNCREP_REGISTER_FIND

}  // namespace
}  // namespace tf_syncrep
