// Exclusive or shared access to the variables that an op updates in place.

#ifndef TF_SYNCREP_CC_TF_LOCKED_VARIABLES_H_
#define TF_SYNCREP_CC_TF_LOCKED_VARIABLES_H_

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tf_syncrep/cc/tf/compat.h"
#include "tf_syncrep/cc/tf/tensor_data.h"

namespace tf_syncrep {

// Locks some of an op's inputs, ref or resource variables, until it goes out of
// scope. Mutexes are taken in the order of their addresses, which is
// TensorFlow's own rule, so that ops on the same variables cannot deadlock.
//
// Each lock guards the variable's tensor: its buffer, its shape and, if the
// lock is exclusive, its elements. Holders of a shared lock may write elements
// only under a finer lock of their own (see RowLocks).
class LockedVariables {
 public:
  enum class Access {
    // Nobody else reads or writes. Readers that already hold the buffer keep
    // it: see PrepareToWrite().
    kExclusive,
    // For those who write: others may read and hold shared access too. A
    // resource variable is first put into copy-on-read mode, so that no reader
    // aliases its buffer.
    kShared,
    // For those who only read, beside holders of shared access. The mode stays
    // as it is, since a variable in it is copied whenever it is read as a
    // whole.
    kRead,
  };

  struct Request {
    int input;                   // index of the op's input
    std::string name;            // its name, for error messages
    tensorflow::DataType dtype;  // that the variable must have
    Access access;
  };

  LockedVariables() = default;
  ~LockedVariables();
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;

  // Locks all of `requests`; call once. On an error nothing is locked. Errors:
  // FailedPrecondition for a variable that is not initialized, InvalidArgument
  // for one of another dtype or for the same variable given twice.
  absl::Status Lock(tensorflow::OpKernelContext* ctx,
                    absl::Span<const Request> requests);

  // The tensor of requests[i]; valid while i is locked.
  const tensorflow::Tensor& tensor(int i) const {
    return *variables_[i].tensor;
  }

  // The address by which others know the variable of requests[i].
  const void* mutex(int i) const { return variables_[i].mu; }

  // Puts requests[i], a resource variable locked exclusively, into copy-on-read
  // mode. If somebody else holds its buffer, or the buffer is not aligned as
  // those of TensorFlow's allocator are, the variable gets a copy of its own.
  absl::Status PrepareToShare(tensorflow::OpKernelContext* ctx, int i);

  // Whether requests[i], a resource variable, is in copy-on-read mode. While it
  // is locked this does not change.
  bool IsShared(int i) const {
    return variables_[i].resource->copy_on_read_mode.load();
  }

  // Makes the elements of requests[i], locked exclusively, safe to overwrite:
  // if a reader still holds the buffer, the variable gets a copy of its own.
  absl::Status PrepareToWrite(tensorflow::OpKernelContext* ctx, int i);

  // The elements of requests[i]. May only be called after one of these, or with
  // shared access.
  template <typename T>
  T* data(int i) {
    return Data<T>(*variables_[i].tensor);
  }

  // Unlocks requests[i] before the end of the scope. (No static analysis knows
  // which locks are held, since that is decided at run time.)
  void Unlock(int i) ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Variable {
    Request request;
    // Keeps a resource variable alive; null for a ref variable.
    tensorflow::core::RefCountPtr<tensorflow::Var> resource;
    VariableMutex* mu = nullptr;
    bool locked = false;
    // The variable's own tensor, or `ref_tensor`, which shares its buffer.
    tensorflow::Tensor* tensor = nullptr;
    tensorflow::Tensor ref_tensor;
  };

  bool IsRead(int i) const;
  absl::Status FindVariables(tensorflow::OpKernelContext* ctx,
                             absl::Span<const Request> requests);
  absl::Status CheckDistinct() const;
  void LockAll() ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockAll();
  // Puts the resource variables with shared access into copy-on-read mode,
  // taking one exclusive lock at a time. Nothing may be locked.
  absl::Status StartCopyOnRead(tensorflow::OpKernelContext* ctx);
  // Whether all variables with shared access are in that mode. While the locks
  // are held this does not change.
  bool CopyOnReadStarted() const;
  absl::Status CheckTensors(tensorflow::OpKernelContext* ctx);

  std::vector<Variable> variables_;  // in the order of the requests
  std::vector<Variable*> by_address_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_TF_LOCKED_VARIABLES_H_
