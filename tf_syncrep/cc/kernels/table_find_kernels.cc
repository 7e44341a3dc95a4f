// Kernels that find rows by keys, and make rows for keys: lookups, and imports
// of what was exported.

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tf_syncrep/cc/kernels/table_index_resource.h"
#include "tf_syncrep/cc/kernels/table_part.h"
#include "tf_syncrep/cc/kernels/table_request.h"
#include "tf_syncrep/cc/lib/array.h"
#include "tf_syncrep/cc/lib/rows/row_gather.h"
#include "tf_syncrep/cc/lib/rows/row_locks.h"
#include "tf_syncrep/cc/lib/rows/row_order.h"
#include "tf_syncrep/cc/tf/device_sharder.h"
#include "tf_syncrep/cc/tf/lib_type.h"
#include "tf_syncrep/cc/tf/out_of_memory.h"
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
using tensorflow::TensorShapeUtils;

// Initial vectors take so long that few elements are worth another thread.
constexpr int64_t kMinDrawnPerThread = 2048;

absl::Status OutOfMemoryFor(int64_t num_keys) {
  return OutOfMemory(absl::StrCat("a lookup of ", num_keys, " keys"),
                     32 * num_keys);
}

absl::Status CheckVectors(const Tensor& vectors) {
  if (!TensorShapeUtils::IsMatrix(vectors.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("vectors must be a matrix, but has shape ",
                     vectors.shape().DebugString()));
  }
  return absl::OkStatus();
}

// A key that is to have a row.
struct NewKey {
  int64_t table;
  int64_t place;  // in the caller's arrays
  int64_t key;
};

// Free rows for new keys, which go back if they are not used.
class TakenRows {
 public:
  explicit TakenRows(TableIndexResource* index) : index_(index) {}
  ~TakenRows() { GiveBack(); }
  TakenRows(const TakenRows&) = delete;
  TakenRows& operator=(const TakenRows&) = delete;

  // For keys in the order of their tables: those of a table that is full get
  // none, and are counted in num_refused[table].
  absl::Status Take(const Array<NewKey>& keys, int64_t num_keys,
                    std::vector<int64_t>* num_refused) {
    num_builds_ = index_->num_builds();
    if (!rows_.Allocate(num_keys) || !keys_.Allocate(num_keys)) {
      return OutOfMemoryFor(num_keys);
    }
    for (int64_t begin = 0; begin < num_keys;) {
      const int64_t table = keys[begin].table;
      int64_t end = begin;
      while (end < num_keys && keys[end].table == table) {
        ++end;
      }
      const int64_t taken =
          index_->table(table).TakeFree(end - begin, rows_.data() + num_);
      if (taken < 0) {
        return OutOfMemoryFor(num_keys);
      }
      std::copy(keys.begin() + begin, keys.begin() + begin + taken,
                keys_.begin() + num_);
      num_ += taken;
      (*num_refused)[table] += end - begin - taken;
      begin = end;
    }
    return absl::OkStatus();
  }

  int64_t size() const { return num_; }
  const int32_t* rows() const { return rows_.data(); }
  int32_t row(int64_t i) const { return rows_[i]; }
  const NewKey& key(int64_t i) const { return keys_[i]; }

  // Rows before this one belong to somebody else from now on.
  void Use(int64_t i) { first_ = i + 1; }

  void GiveBack() {
    // An index that was made anew knows no rows that were taken before.
    if (index_->num_builds() == num_builds_) {
      for (; first_ < num_; ++first_) {
        index_->table(keys_[first_].table).GiveBack(&rows_[first_], 1);
      }
    }
    num_ = first_ = 0;
  }

 private:
  TableIndexResource* const index_;
  int64_t num_builds_ = 0;
  Array<int32_t> rows_;
  Array<NewKey> keys_;
  int64_t first_ = 0;
  int64_t num_ = 0;
};

// Gives taken rows their initial vectors, and nobody finds them yet.
template <typename T>
void DrawVectors(OpKernelContext* ctx, TableIndexResource* index,
                 const TakenRows& taken, int64_t width, T* vectors) {
  DeviceSharder sharder(ctx);
  const int64_t size = taken.size();
  const int64_t num_shards =
      sharder.NumShards(size * width, kMinDrawnPerThread);
  sharder.Run(num_shards, [&](int64_t shard) {
    const int64_t end = ShardBegin(shard + 1, num_shards, size);
    for (int64_t i = ShardBegin(shard, num_shards, size); i < end; ++i) {
      const NewKey& key = taken.key(i);
      const int64_t row = taken.row(i);
      const std::lock_guard<std::mutex> lock(
          RowLocks::Global().Of(vectors, row));
      index->initial_values(key.table).Draw(key.key, width,
                                            vectors + row * width);
    }
  });
}

constexpr int kVectors = 0;  // of what is added to a TablePart

template <typename T, typename Out>
class TableFindOp final : public OpKernel {
 public:
  explicit TableFindOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("insert", &insert_));
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupTableIndex(ctx, &index));
    TableRequest request;
    OP_REQUIRES_OK(ctx, request.Read(ctx->input(4), index->num_tables()));
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3);
    part.Add(/*input=*/1, "vectors", DataTypeToEnum<T>::value);
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    OP_REQUIRES_OK(ctx, CheckVectors(part.tensor(kVectors)));
    const int64_t num_keys = request.num_keys();
    const int64_t width = part.tensor(kVectors).dim_size(1);
    Tensor* rows_output;
    Tensor* values;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, TensorShape({num_keys}), &rows_output));
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(1, TensorShape({num_keys, width}), &values));
    auto* const rows = Data<int32_t>(*rows_output);
    bool is_same;
    do {
      OP_REQUIRES_OK(ctx, Find(ctx, index.get(), request, &part, rows));
      is_same = true;
      if (insert_) {
        OP_REQUIRES_OK(
            ctx, Insert(ctx, index.get(), request, &part, rows, &is_same));
      }
    } while (!is_same);
    DeviceSharder sharder(ctx);
    const Tensor& vectors = part.tensor(kVectors);
    GatherRows(Data<const LibType<T>>(vectors), vectors.dim_size(0), width,
               static_cast<const int32_t*>(rows), num_keys, MissingRows::kZeros,
               Data<LibType<Out>>(*values), sharder);
  }

 private:
  absl::Status Find(OpKernelContext* ctx, TableIndexResource* index,
                    const TableRequest& request, TablePart* part,
                    int32_t* rows) const {
    DeviceSharder sharder(ctx);
    const TableColumns columns = part->columns();
    for (int64_t i = 0; i < index->num_tables(); ++i) {
      const int64_t begin = request.begin(i);
      bool has_memory;
      if (insert_) {
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

  // Gives keys that are admitted rows, while there are any.
  static absl::Status Insert(OpKernelContext* ctx, TableIndexResource* index,
                             const TableRequest& request, TablePart* part,
                             int32_t* rows, bool* is_same) {
    const int64_t num_keys = request.num_keys();
    const int64_t num_new =
        std::count(rows, rows + num_keys, DynamicTable::kAdmitted);
    std::vector<int64_t> num_refused(index->num_tables());
    if (num_new > 0) {
      Array<NewKey> keys;
      if (!keys.Allocate(num_new)) {
        return OutOfMemoryFor(num_keys);
      }
      int64_t next = 0;
      for (int64_t table = 0; table < index->num_tables(); ++table) {
        const int64_t end = request.begin(table) + request.size(table);
        for (int64_t i = request.begin(table); i < end; ++i) {
          if (rows[i] == DynamicTable::kAdmitted) {
            keys[next++] = {table, i, ReadOnce(&request.keys()[i])};
            rows[i] = DynamicTable::kNoRow;
          }
        }
      }
      TakenRows taken(index);
      TF_RETURN_IF_ERROR(taken.Take(keys, num_new, &num_refused));
      TF_RETURN_IF_ERROR(
          part->Keep(ctx, kVectors, taken.rows(), taken.size(), is_same));
      if (!*is_same) {
        return absl::OkStatus();
      }
      auto* const vectors = part->template data<LibType<T>>(kVectors);
      DrawVectors(ctx, index, taken, part->tensor(kVectors).dim_size(1),
                  vectors);
      for (int64_t i = 0; i < taken.size(); ++i) {
        const NewKey& key = taken.key(i);
        taken.Use(i);
        const int32_t row =
            index->table(key.table).Add(part->columns(), vectors, key.key,
                                        {index->clock(), 1}, taken.row(i));
        if (row < 0) {
          return OutOfMemoryFor(num_keys);
        }
        rows[key.place] = row;
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

  bool insert_;
};

template <typename T>
class TableImportOp final : public OpKernel {
 public:
  explicit TableImportOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table", &table_));
  }

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<TableIndexResource> index;
    OP_REQUIRES_OK(ctx, LookupTableIndex(ctx, &index));
    OP_REQUIRES(ctx, table_ < index->num_tables(),
                absl::InvalidArgumentError(absl::StrCat("table must be in [0, ",
                                                        index->num_tables(),
                                                        "), but is ", table_)));
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
      OP_REQUIRES(ctx, uses[i].last_use >= 0 && uses[i].count >= 1,
                  absl::InvalidArgumentError(absl::StrCat(
                      "last_uses must be at least 0 and counts at least 1. "
                      "Received: last use ",
                      uses[i].last_use, " and count ", uses[i].count,
                      " of key ", keys[i], " of table ", name)));
    }
    OP_REQUIRES_OK(ctx, CheckDistinct(ctx, keys, name));
    TablePart part(index.get(), /*keys=*/2, /*uses=*/3);
    part.Add(/*input=*/1, "vectors", DataTypeToEnum<T>::value);
    OP_REQUIRES_OK(ctx, part.Lock(ctx));
    OP_REQUIRES_OK(ctx, CheckVectors(part.tensor(kVectors)));
    Tensor* output;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({size}), &output));
    bool is_same;
    do {
      OP_REQUIRES_OK(ctx, Import(ctx, index.get(), keys, uses, &part,
                                 Data<int32_t>(*output), &is_same));
    } while (!is_same);
  }

 private:
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
    Array<NewKey> new_keys;
    if (!has_memory || !new_keys.Allocate(size)) {
      return OutOfMemoryFor(size);
    }
    int64_t num_new = 0;
    for (int64_t i = 0; i < size; ++i) {
      if (rows[i] < 0) {
        new_keys[num_new++] = {table_, i, keys[i]};
      }
    }
    TakenRows taken(index);
    std::vector<int64_t> num_refused(index->num_tables());
    TF_RETURN_IF_ERROR(taken.Take(new_keys, num_new, &num_refused));
    if (taken.size() < num_new) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the rows of table ", index->options()[table_].name,
                       " must be enough for its keys. Received: ", num_new,
                       " new keys, where ", taken.size(), " of ",
                       table.options().capacity, " rows are free"));
    }
    TF_RETURN_IF_ERROR(
        part->Keep(ctx, kVectors, taken.rows(), taken.size(), is_same));
    if (!*is_same) {
      return absl::OkStatus();
    }
    auto* const vectors = part->template data<LibType<T>>(kVectors);
    DrawVectors(ctx, index, taken, part->tensor(kVectors).dim_size(1), vectors);
    for (int64_t i = 0; i < size; ++i) {
      if (rows[i] >= 0) {
        table.SetUse(part->columns(), keys[i], rows[i], uses[i]);
      }
    }
    for (int64_t i = 0; i < taken.size(); ++i) {
      const int64_t place = taken.key(i).place;
      taken.Use(i);
      rows[place] = table.Add(part->columns(), vectors, keys[place],
                              uses[place], taken.row(i));
      if (rows[place] < 0) {
        return OutOfMemoryFor(size);
      }
    }
    return absl::OkStatus();
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
