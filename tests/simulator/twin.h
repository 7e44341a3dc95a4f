// The sequential twin: what training must come to, computed one update after
// the other.

#ifndef TESTS_SIMULATOR_TWIN_H_
#define TESTS_SIMULATOR_TWIN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tf_syncrep::simulator {

// A variable, or its gradient: rows of kRowSize elements. A dense one has rows
// 0, 1, ...; a sparse gradient has some of them.
constexpr int kRowSize = 2;
constexpr int kNumRows = 3;

struct Gradient {
  std::vector<int64_t> rows;   // of a sparse one; may repeat, in any order
  std::vector<double> values;  // kRowSize for each row
};

using Weights = std::vector<double>;  // kNumRows * kRowSize

// One step of a worker: what it read and what came of it, for each variable.
struct Contribution {
  int64_t number = 0;
  std::vector<Weights> read;
  std::vector<Gradient> gradients;
};

// The gradient of this contribution: small whole numbers, of which any sum is
// exact, that depend on the weights; and a power of two, so that no other set
// of gradients has the same sum.
Gradient MakeGradient(int64_t number, int variable, bool sparse,
                      const Weights& read);

// The mean as an accumulator makes it: of a sparse gradient, row by row, over
// those that have the row. Rows ascend, each once.
Gradient MeanOf(const std::vector<const Gradient*>& gradients, bool sparse);

// As the servers do it.
void ApplyMean(const Gradient& mean, bool sparse, Weights* weights);

class Twin {
 public:
  Twin(int num_variables, bool last_is_sparse);

  bool IsSparse(int variable) const {
    return last_is_sparse_ && variable == static_cast<int>(weights_.size()) - 1;
  }

  // The gate counted it in this round.
  void Commit(int64_t round, std::shared_ptr<const Contribution> contribution);

  // A server took the mean of a round and applied it.
  void Take(int variable, int64_t round, const Gradient& mean,
            const Weights& after);

  // The gate ended a round by an update.
  void Advance(int64_t round);

  // The gate opened a generation: an update that was under way may have reached
  // some variables.
  void Open();

  // A server has these weights from now on, restored, or initialized.
  void Restore(int variable, const Weights& weights);

  const std::string& error() const { return error_; }
  int64_t updates() const { return updates_; }

 private:
  void EndUpdate(size_t variable);
  void Fail(const std::string& error);

  const bool last_is_sparse_;
  std::vector<Weights> weights_;
  std::vector<Weights>
      updated_;  // not empty where this round's update was made
  // Where it was made, and a new chief has restored older weights since, as it
  // does before it opens a generation. What the last one sent may come between.
  std::vector<bool> is_undone_;
  std::map<int64_t, std::vector<std::shared_ptr<const Contribution>>>
      committed_;
  int64_t updates_ = 0;
  std::string error_;
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_TWIN_H_
