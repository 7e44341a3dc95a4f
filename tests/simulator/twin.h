// The sequential twin: it computes the result that training must have, one
// update after the other.

#ifndef TESTS_SIMULATOR_TWIN_H_
#define TESTS_SIMULATOR_TWIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tf_syncrep::simulator {

// A variable, or its gradient, has rows of kRowSize elements. A dense one has
// the rows 0, 1, ...; a sparse gradient has some of them.
constexpr int kRowSize = 2;
constexpr int kNumRows = 3;

struct Gradient {
  // of a sparse gradient; they may repeat, in any order
  std::vector<int64_t> rows;
  std::vector<double> values;  // kRowSize for each row
};

using Weights = std::vector<double>;  // kNumRows * kRowSize

// One step of a worker: what it read and computed, for each variable.
struct Contribution {
  int64_t number = 0;
  std::vector<Weights> read;
  std::vector<Gradient> gradients;
};

// The gradient of this contribution: small whole numbers that depend on the
// weights, so that any sum is exact; and a power of two, so that no other set
// of gradients has the same sum.
Gradient MakeGradient(int64_t number, int variable, bool sparse,
                      const Weights& read);

// The mean that an accumulator computes. For sparse gradients it is computed
// row by row, over those that have the row; rows ascend, each once.
Gradient MeanOf(const std::vector<const Gradient*>& gradients, bool sparse);

// Applies a mean as the servers do.
void ApplyMean(const Gradient& mean, bool sparse, Weights* weights);

class Twin {
 public:
  Twin(int num_variables, bool last_is_sparse);

  bool IsSparse(int variable) const {
    return last_is_sparse_ && variable == static_cast<int>(weights_.size()) - 1;
  }

  // The gate has counted it in this round.
  void Commit(int64_t round, std::shared_ptr<const Contribution> contribution);

  // A server has taken the mean of a round and applied it.
  void Take(int variable, int64_t round, const Gradient& mean,
            const Weights& after);

  // The gate has ended a round by an update.
  void Advance(int64_t round);

  // The gate has opened a generation: an update in progress may have reached
  // some variables.
  void Open();

  // A server has restored or initialized these weights.
  void Restore(int variable, const Weights& weights);

  const std::string& error() const { return error_; }
  int64_t updates() const { return updates_; }

 private:
  void EndUpdate(size_t variable);
  void Fail(const std::string& error);

  const bool last_is_sparse_;
  std::vector<Weights> weights_;
  std::vector<Weights> updated_;  // not empty if this round's update was made
  // Set if it was made, and a new chief has restored older weights since, as
  // chiefs do before they open a generation. The last update of the earlier
  // chief may come between the two.
  std::vector<bool> is_undone_;
  std::map<int64_t, std::vector<std::shared_ptr<const Contribution>>>
      committed_;
  int64_t updates_ = 0;
  std::string error_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_TWIN_H_
