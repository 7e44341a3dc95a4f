// A trainer of a table that grows: it looks up keys, and sends their gradient.

#ifndef TESTS_SIMULATOR_TRAINER_H_
#define TESTS_SIMULATOR_TRAINER_H_

#include <cstdint>
#include <vector>

#include "tests/simulator/actor.h"

namespace tf_syncrep::simulator {

// It is a thread of a worker's process, and knows of no rounds.
class Trainer final : public Actor {
 public:
  Trainer(int number, Cluster* cluster)
      : Actor({Task::Job::kTrainer, number}, cluster) {}

  bool is_over() const override { return false; }

 private:
  void Begin() override { rows_.clear(); }
  void Next() override;
  void Take(Call* call) override;
  void GoOn() override;

  int64_t num_batches_ = 0;
  std::vector<int64_t> keys_;  // of the present batch
  std::vector<int32_t> rows_;  // empty before it has looked up the keys
};

}  // namespace tf_syncrep::simulator

#endif  // TESTS_SIMULATOR_TRAINER_H_
