#include "tf_syncrep/cc/lib/sync_gate.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <type_traits>

namespace tf_syncrep {
namespace {

constexpr SyncGate::Time kNever = SyncGate::Time::max();
// No lease grows beyond this: nanoseconds must not overflow.
constexpr SyncGate::Time kLongestLease = std::chrono::hours(24 * 365 * 10);

GateStatus EndOfInput() {
  return {GateStatus::kOutOfRange,
          "The gate is closed: the chief has ended the training."};
}

GateStatus CheckPositive(const char* name, int64_t value) {
  if (value < 1) {
    return {GateStatus::kInvalidArgument,
            std::string(name) +
                " must be at least 1. Received: " + std::to_string(value)};
  }
  return {};
}

GateStatus FirstError(std::initializer_list<GateStatus> statuses) {
  for (const GateStatus& status : statuses) {
    if (!status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace

SyncGate::SyncGate(const SyncGateOptions& options, Clock clock)
    : strict_(options.strict),
      updater_lease_(options.updater_lease),
      first_generation_(options.first_generation),
      clock_(std::move(clock)),
      quorum_(options.quorum),
      total_(options.total),
      next_quorum_(options.quorum),
      next_total_(options.total),
      lease_(options.lease),
      start_lease_(options.start_lease),
      round_(options.first_round) {}

GateStatus SyncGate::CheckOptions(const SyncGateOptions& options) {
  return FirstError(
      {CheckPositive("replicas_to_aggregate", options.quorum),
       CheckPositive("total_num_replicas", options.total),
       CheckPositive("lease_secs (in ns)", options.lease.count()),
       CheckPositive("start_secs (in ns)", options.start_lease.count())});
}

// --- Worker ---

SyncGate::WaitId SyncGate::Acquire(const GateWorker& worker, AcquireKind kind,
                                   const GateTerms& terms,
                                   AcquireCallback done) {
  Wakeups wakeups;
  WaitId id;
  {
    std::lock_guard<std::mutex> lock(mu_);
    id = next_wait_id_++;
    Worker* caller = Enter(worker, kind, &wakeups);
    if (caller == nullptr) {
      wakeups.push_back([done = std::move(done), device = worker.device] {
        done({GateStatus::kAborted,
              "Another start of " + device + " took this one's place."},
             {});
      });
    } else {
      caller->waiting = id;
      acquires_.insert(
          {id, {caller, kind, terms, clock_(), kNever, std::move(done)}});
      Place(acquires_.extract(id), &wakeups);
    }
    Pump(&wakeups);
  }
  Run(wakeups);
  return id;
}

GateStatus SyncGate::Admit(int64_t generation, const GateWorker& worker,
                           int64_t round, bool fit, Admission* admission) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Worker* caller = Find(worker);
    if (caller != nullptr) {
      if (generation == generation_) {
        TimeFirstStep(caller);
      }
      Renew(caller);
    }
    if (!end_of_waits_.ok()) {
      if (caller != nullptr) {
        caller->takes_part = false;
      }
      return end_of_waits_;
    }
    *admission = Admission::kStale;
    if (caller != nullptr) {
      caller->started = true;
      if (IsPresent(generation, round) && IsInFlight(*caller)) {
        // A step that was begun again: what its first run pushed, nobody knows.
        Release(caller);
      }
      if (IsPresent(generation, round) && IsLive(*caller)) {
        *admission = Judge(*caller, fit);
        Release(caller);  // the permit has served
      }
    }
    Count(*admission, caller);
    Pump(&wakeups);
  }
  Run(wakeups);
  return {};
}

bool SyncGate::Commit(int64_t generation, const GateWorker& worker,
                      int64_t round) {
  Wakeups wakeups;
  bool counts = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Worker* caller = FindAndRenew(worker);
    if (caller == nullptr) {
      return false;
    }
    counts =
        generation == generation_ && round == round_ && IsInFlight(*caller);
    if (counts) {
      caller->contributed_in_round = ContributedInRound(*caller) + 1;
      caller->contributed_round = round_;
      caller->state = Worker::State::kIdle;
      caller->stats.contributed++;
      caller->num_expired_pushes = 0;
      caller->longest_push =
          std::max(caller->longest_push, clock_() - caller->admitted_at);
      in_flight_--;
      committed_++;
      sums_.committed++;
    }
    Pump(&wakeups);
  }
  Run(wakeups);
  return counts;
}

void SyncGate::Abort(int64_t generation, const GateWorker& worker,
                     int64_t round) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Worker* caller = FindAndRenew(worker);
    if (caller == nullptr) {
      return;
    }
    if (generation == generation_ && round == round_) {
      Release(caller);
    }
    Pump(&wakeups);
  }
  Run(wakeups);
}

void SyncGate::ReturnPermit(const GateWorker& worker, const Permit& permit) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Worker* caller = Find(worker);
    if (caller != nullptr && HoldsPermit(*caller) &&
        caller->permit_number == permit.number) {
      Release(caller);
      Pump(&wakeups);
    }
  }
  Run(wakeups);
}

void SyncGate::Leave(const GateWorker& worker) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const bool is_new = workers_.count(worker.device) == 0;
    if (is_new) {
      // It was expected all the same.
      workers_[worker.device].incarnation = worker.incarnation;
    }
    Worker* caller = Find(worker);
    if (caller == nullptr ||
        (!is_new && caller->presence == Worker::Presence::kExpected)) {
      return;
    }
    EndAcquire(ExtractAcquire(caller->waiting),
               {GateStatus::kCancelled, worker.device + " has left."}, {},
               &wakeups);
    Release(caller);
    caller->takes_part = false;
    SetPresence(Worker::Presence::kLeft, caller);
    Pump(&wakeups);
  }
  Run(wakeups);
}

// --- Updater ---

int64_t SyncGate::Open(int64_t step, const GateTerms& terms) {
  Wakeups wakeups;
  int64_t generation;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (generation_ > 0) {
      const GateStatus aborted = {
          GateStatus::kAborted,
          "A new generation of the gate was opened: begin anew."};
      EndAcquires(aborted, &wakeups);
      EndUpdaterWaits(aborted, &wakeups);
    }
    SetTerms(terms);
    if (NumAdmitted() > 0) {
      VoidRound();
    } else if (generation_ > 0) {
      StartRound();
    }
    passes_.clear();
    if (!end_of_waits_.ok()) {
      StartTraining();
      end_of_waits_ = {};
    }
    generation_ = std::max(generation_ + 1, first_generation_);
    generation = generation_;
    step_ = step;
    opened_at_ = updater_seen_ = clock_();
    updater_started_ = false;
    unheard_of_expired_ = false;
    num_first_steps_ = 0;
    longest_first_step_ = Time(0);
    opened_quorum_ = quorum_;
    opened_total_ = total_;
    PlaceEarly(&wakeups);
    Pump(&wakeups);
  }
  Run(wakeups);
  return generation;
}

void SyncGate::AddPasses(int64_t n) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (n > 0) {
      passes_.push_back({{generation_, round_, step_}, n});
    }
    Pump(&wakeups);
  }
  Run(wakeups);
}

SyncGate::WaitId SyncGate::WaitQuorum(int64_t generation, Time timeout,
                                      QuorumCallback done) {
  return AddUpdaterWait(generation, UpdaterWait::Kind::kQuorum, timeout,
                        std::move(done));
}

SyncGate::WaitId SyncGate::Flush(int64_t generation, QuorumCallback done) {
  return AddUpdaterWait(generation, UpdaterWait::Kind::kFlush, Time(0),
                        std::move(done));
}

SyncGate::WaitId SyncGate::Drain(int64_t generation, DrainCallback done) {
  return AddUpdaterWait(
      generation, UpdaterWait::Kind::kDrain, Time(0),
      [done = std::move(done)](const GateStatus& status, const Quorum&) {
        done(status);
      });
}

GateStatus SyncGate::Advance(int64_t generation, int64_t round, int64_t step,
                             bool* advanced) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    *advanced = false;
    GateStatus status = CheckGeneration(generation);
    if (!status.ok()) {
      return status;
    }
    RenewUpdater();
    if (round != round_) {
      return {};
    }
    if (!RoundIsFull() && !(flushing_ && in_flight_ == 0)) {
      return {GateStatus::kFailedPrecondition,
              "Round " + std::to_string(round) +
                  " cannot end: " + std::to_string(committed_) + " of " +
                  std::to_string(quorum_) + " gradients are committed."};
    }
    *advanced = true;
    sums_.applied += committed_;
    sums_.updates++;
    sums_.rounds++;
    step_ = step;
    StartRound();
    Pump(&wakeups);
  }
  Run(wakeups);
  return {};
}

void SyncGate::CancelUpdater(int64_t generation) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (generation == generation_) {
      flushing_ = flushing_ && !FlushWaits();
      EndUpdaterWaits({GateStatus::kCancelled, "The updater was stopped."},
                      &wakeups);
      Pump(&wakeups);
    }
  }
  Run(wakeups);
}

GateStatus SyncGate::Configure(int64_t quorum, int64_t total) {
  GateStatus status =
      FirstError({CheckPositive("replicas_to_aggregate", quorum),
                  CheckPositive("total_num_replicas", total)});
  if (!status.ok()) {
    return status;
  }
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    GateTerms terms;
    terms.quorum = quorum;
    terms.total = total;
    SetTerms(terms);
    if (IsOpen()) {
      PlaceEarly(&wakeups);
      Pump(&wakeups);
    }
  }
  Run(wakeups);
  return {};
}

void SyncGate::Close(int64_t generation) { Fail(generation, EndOfInput()); }

void SyncGate::Fail(int64_t generation, const GateStatus& error) {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (IsGeneration(generation)) {
      EndTraining(error, &wakeups);
    }
  }
  Run(wakeups);
}

void SyncGate::Shutdown() {
  Wakeups wakeups;
  {
    std::lock_guard<std::mutex> lock(mu_);
    shut_down_ = true;
    EndTraining({GateStatus::kAborted, "The gate was deleted."}, &wakeups);
    while (!early_acquires_.empty()) {
      EndEarly(early_acquires_.extract(early_acquires_.begin()), &wakeups);
    }
  }
  Run(wakeups);
}

// --- Anyone ---

bool SyncGate::Cancel(WaitId id) {
  Wakeups wakeups;
  bool found;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const GateStatus cancelled = {GateStatus::kCancelled,
                                  "The wait was cancelled."};
    AcquireWaits::node_type acquire = ExtractAcquire(id);
    found = !acquire.empty() || CancelUpdaterWait(id, cancelled, &wakeups);
    EndAcquire(std::move(acquire), cancelled, {}, &wakeups);
    Pump(&wakeups);
  }
  Run(wakeups);
  return found;
}

SyncGateStats SyncGate::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  SyncGateStats stats = sums_;
  stats.generation = generation_;
  stats.round = round_;
  stats.step = step_;
  stats.quorum = quorum_;
  stats.total = total_;
  stats.live = NumLive();
  stats.in_flight = in_flight_;
  stats.pending = committed_;
  for (const auto& [device, worker] : workers_) {
    stats.workers.push_back(worker.stats);
    stats.workers.back().device = device;
    stats.workers.back().live = IsLive(worker);
  }
  return stats;
}

SyncGate::Time SyncGate::Poll() {
  Wakeups wakeups;
  Time next = kNever;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const Time now = clock_();
    ExpireUpdater(now, &wakeups);
    ExpireWorkers(now);
    for (auto wait = early_acquires_.begin(); wait != early_acquires_.end();) {
      const auto next_wait = std::next(wait);
      if (wait->second.deadline <= now) {
        EndEarly(early_acquires_.extract(wait), &wakeups);
      }
      wait = next_wait;
    }
    Pump(&wakeups);
    for (const auto& entry : updater_waits_) {
      next = std::min(next, entry.second.deadline);
    }
    for (const auto& entry : early_acquires_) {
      next = std::min(next, entry.second.deadline);
    }
    const Time first_step_lease = FirstStepLease();
    for (const auto& entry : workers_) {
      if (IsLive(entry.second) && entry.second.waiting == 0) {
        next = std::min(next, LeaseEnd(entry.second, first_step_lease));
      }
    }
    if (IsOpen() && !unheard_of_expired_) {
      next = std::min(next, opened_at_ + start_lease_);
    }
    if (IsOpen() && updater_lease_.count() > 0) {
      next = std::min(next, UpdaterLeaseEnd());
    }
  }
  Run(wakeups);
  return next;
}

// --- With mu_ held ---

void SyncGate::Run(const Wakeups& wakeups) {
  for (const std::function<void()>& wakeup : wakeups) {
    wakeup();
  }
}

bool SyncGate::RoundHasRoom() const {
  return IsOpen() && !flushing_ && NumAdmitted() < quorum_ &&
         permitted_ + NumAdmitted() < std::max(total_, quorum_);
}

int64_t SyncGate::NumLive() const {
  const int64_t unheard_of =
      unheard_of_expired_ ? 0 : std::max<int64_t>(total_ - num_heard_of_, 0);
  return num_live_ + unheard_of;
}

int64_t SyncGate::Share() const {
  const int64_t live = std::max<int64_t>(NumLive(), 1);
  // Not (quorum + live - 1) / live, which may overflow.
  return (quorum_ - 1) / live + 1;
}

int64_t SyncGate::ContributedInRound(const Worker& worker) const {
  return worker.contributed_round == round_ ? worker.contributed_in_round : 0;
}

bool SyncGate::HasGivenItsShare(const Worker& worker) const {
  return strict_ && ContributedInRound(worker) >= Share();
}

bool SyncGate::HoldsPermit(const Worker& worker) const {
  return worker.state == Worker::State::kPermitted && worker.round == round_;
}

bool SyncGate::IsInFlight(const Worker& worker) const {
  return worker.state == Worker::State::kAdmitted && worker.round == round_;
}

SyncGate::Time SyncGate::PushLease(const Worker& worker) const {
  Time lease = std::max(lease_, 2 * worker.longest_push);
  for (int i = 0; i < worker.num_expired_pushes && lease < kLongestLease; ++i) {
    lease *= 2;
  }
  return lease;
}

SyncGate::Time SyncGate::FirstStepLease() const {
  // In strict mode rounds wait for those that were never heard of as well.
  const int64_t num_in_it = std::count_if(workers_.begin(), workers_.end(),
                                          [](const auto& entry) {
                                            return IsInFirstStep(entry.second);
                                          }) +
                            (strict_ ? NumLive() - num_live_ : 0);
  if (num_first_steps_ < num_in_it) {
    return start_lease_;
  }
  return std::min(start_lease_, std::max(lease_, 4 * longest_first_step_));
}

SyncGate::Time SyncGate::LeaseEnd(const Worker& worker,
                                  Time first_step_lease) const {
  if (IsInFlight(worker)) {
    return worker.last_seen + PushLease(worker);
  }
  return worker.last_seen + (worker.started ? lease_ : first_step_lease);
}

SyncGate::Time SyncGate::UpdaterLeaseEnd() const {
  return updater_seen_ + (updater_started_
                              ? updater_lease_
                              : std::max(updater_lease_, start_lease_));
}

SyncGate::Worker* SyncGate::Find(const GateWorker& worker) {
  const auto entry = workers_.find(worker.device);
  return entry != workers_.end() &&
                 entry->second.incarnation == worker.incarnation
             ? &entry->second
             : nullptr;
}

SyncGate::Worker* SyncGate::FindAndRenew(const GateWorker& worker) {
  Worker* caller = Find(worker);
  if (caller != nullptr) {
    Renew(caller);
  }
  return caller;
}

void SyncGate::Renew(Worker* worker) {
  worker->last_seen = clock_();
  if (worker->presence == Worker::Presence::kExpired) {
    SetPresence(Worker::Presence::kLive, worker);
  }
}

void SyncGate::TimeFirstStep(Worker* worker) {
  if (worker->started) {
    return;
  }
  longest_first_step_ =
      std::max(longest_first_step_, clock_() - worker->last_seen);
  // One that has started twice is not two workers.
  num_first_steps_ += worker->timed_in != generation_ ? 1 : 0;
  worker->timed_in = generation_;
}

SyncGate::Worker* SyncGate::Enter(const GateWorker& worker, AcquireKind kind,
                                  Wakeups* wakeups) {
  const auto [entry, is_new] = workers_.try_emplace(worker.device);
  Worker& caller = entry->second;
  if (is_new) {
    caller.incarnation = worker.incarnation;
  } else if (caller.incarnation != worker.incarnation) {
    std::vector<uint64_t>& dead = caller.dead_incarnations;
    if (std::find(dead.begin(), dead.end(), worker.incarnation) != dead.end()) {
      return nullptr;
    }
    dead.push_back(caller.incarnation);
    caller.incarnation = worker.incarnation;
    caller.started = false;
    caller.takes_part = false;
    caller.longest_push = Time(0);
    caller.num_expired_pushes = 0;
  }
  EndAcquire(ExtractAcquire(caller.waiting),
             {GateStatus::kAborted,
              "Another acquire of " + worker.device + " took its place."},
             {}, wakeups);
  Release(&caller);
  if (kind == AcquireKind::kFirst ||
      caller.presence == Worker::Presence::kExpected) {
    caller.started = false;
  }
  SetPresence(Worker::Presence::kLive, &caller);
  caller.last_seen = clock_();
  return &caller;
}

void SyncGate::SetPresence(Worker::Presence presence, Worker* worker) {
  const auto count = [this, worker](int64_t sign) {
    num_heard_of_ += worker->presence != Worker::Presence::kExpected ? sign : 0;
    num_live_ += IsLive(*worker) ? sign : 0;
  };
  count(-1);
  worker->presence = presence;
  count(+1);
}

SyncGate::Admission SyncGate::Judge(const Worker& worker, bool fit) const {
  if (!HoldsPermit(worker) && HasGivenItsShare(worker)) {
    return Admission::kStale;
  }
  if (!fit) {
    return Admission::kRejected;
  }
  if (flushing_ || NumAdmitted() >= quorum_) {
    return Admission::kLate;
  }
  return Admission::kAdmitted;
}

void SyncGate::Count(Admission admission, Worker* worker) {
  GateWorkerStats nobodys;
  GateWorkerStats& stats = worker == nullptr ? nobodys : worker->stats;
  switch (admission) {
    case Admission::kAdmitted:
      worker->state = Worker::State::kAdmitted;
      worker->round = round_;
      worker->admitted_at = clock_();
      in_flight_++;
      sums_.admitted++;
      break;
    case Admission::kLate:
      stats.late++;
      sums_.late++;
      break;
    case Admission::kStale:
      stats.stale++;
      sums_.stale++;
      break;
    case Admission::kRejected:
      stats.rejected++;
      sums_.rejected++;
      break;
  }
}

void SyncGate::Release(Worker* worker) {
  if (HoldsPermit(*worker)) {
    permitted_--;
  } else if (IsInFlight(*worker)) {
    VoidRound();
  }
  worker->state = Worker::State::kIdle;
}

void SyncGate::StartRound() {
  round_++;
  permitted_ = 0;
  in_flight_ = 0;
  committed_ = 0;
  flushing_ = false;
  quorum_ = next_quorum_;
  total_ = next_total_;
}

void SyncGate::VoidRound() {
  for (auto& entry : workers_) {
    Worker& worker = entry.second;
    worker.stats.voided += ContributedInRound(worker);
  }
  sums_.aborted += in_flight_;
  sums_.voided += committed_;
  sums_.voids++;
  sums_.rounds++;
  StartRound();
}

void SyncGate::StartTraining() {
  for (auto& entry : workers_) {
    SetPresence(Worker::Presence::kExpected, &entry.second);
  }
}

void SyncGate::SetTerms(const GateTerms& terms) {
  const auto set = [](const auto& value, auto* term) {
    if (value > std::decay_t<decltype(value)>(0)) {
      *term = value;
    }
  };
  set(terms.quorum, &next_quorum_);
  set(terms.total, &next_total_);
  set(terms.lease, &lease_);
  set(terms.start_lease, &start_lease_);
  if (generation_ == 0) {
    quorum_ = next_quorum_;
    total_ = next_total_;
  }
}

bool SyncGate::TermsAgree(const GateTerms& terms) const {
  const auto agree = [&terms](int64_t quorum, int64_t total) {
    return (terms.quorum == 0 || terms.quorum == quorum) &&
           (terms.total == 0 || terms.total == total);
  };
  return agree(opened_quorum_, opened_total_) ||
         agree(next_quorum_, next_total_);
}

GateStatus SyncGate::TermsDiffer(const GateTerms& terms) const {
  const auto describe = [](int64_t quorum, int64_t total) {
    return "replicas_to_aggregate=" + std::to_string(quorum) +
           ", total_num_replicas=" + std::to_string(total);
  };
  return {GateStatus::kInvalidArgument,
          "Worker and chief must agree: the chief opened the gate with " +
              describe(opened_quorum_, opened_total_) +
              ". Received: " + describe(terms.quorum, terms.total)};
}

void SyncGate::Place(AcquireWaits::node_type wait, Wakeups* wakeups) {
  AcquireWait& acquire = wait.mapped();
  const bool is_first = acquire.kind == AcquireKind::kFirst;
  if (!end_of_waits_.ok()) {
    if (!is_first || acquire.worker->takes_part || shut_down_) {
      EndAcquireForAll(std::move(wait), end_of_waits_, wakeups);
      return;
    }
    acquire.deadline = clock_() + start_lease_;
  } else if (generation_ > 0) {
    acquire.worker->takes_part = TermsAgree(acquire.terms);
    if (acquire.worker->takes_part) {
      SetPresence(Worker::Presence::kLive, acquire.worker);
      acquires_.insert(std::move(wait));
      return;
    }
    if (!is_first) {
      EndEarly(std::move(wait), wakeups);
      return;
    }
    acquire.deadline = std::min(acquire.deadline, clock_() + lease_);
  }
  early_acquires_.insert(std::move(wait));
}

void SyncGate::PlaceEarly(Wakeups* wakeups) {
  AcquireWaits early;
  early.swap(early_acquires_);
  while (!early.empty()) {
    Place(early.extract(early.begin()), wakeups);
  }
}

void SyncGate::EndEarly(AcquireWaits::node_type wait, Wakeups* wakeups) {
  if (!end_of_waits_.ok()) {
    EndAcquireForAll(std::move(wait), end_of_waits_, wakeups);
    return;
  }
  // It takes no part, and must not be waited for.
  SetPresence(Worker::Presence::kExpired, wait.mapped().worker);
  const GateStatus status = TermsDiffer(wait.mapped().terms);
  EndAcquire(std::move(wait), status, {}, wakeups);
}

SyncGate::AcquireWaits::node_type SyncGate::ExtractAcquire(WaitId id) {
  for (AcquireWaits* waits : {&acquires_, &sated_acquires_}) {
    AcquireWaits::node_type wait = waits->extract(id);
    if (!wait.empty()) {
      return wait;
    }
  }
  return early_acquires_.extract(id);
}

void SyncGate::EndAcquire(AcquireWaits::node_type wait,
                          const GateStatus& status, const Permit& permit,
                          Wakeups* wakeups) {
  if (wait.empty()) {
    return;
  }
  Worker& worker = *wait.mapped().worker;
  const Time now = clock_();
  worker.waiting = 0;
  worker.last_seen = now;
  worker.stats.waited += now - wait.mapped().since;
  wakeups->push_back([done = std::move(wait.mapped().done), status, permit] {
    done(status, permit);
  });
}

void SyncGate::EndAcquireForAll(AcquireWaits::node_type wait,
                                const GateStatus& status, Wakeups* wakeups) {
  const bool succeeds = status.code == GateStatus::kOutOfRange &&
                        wait.mapped().kind == AcquireKind::kFirst;
  // Else it has been told.
  wait.mapped().worker->takes_part &= succeeds || end_of_waits_.ok();
  EndAcquire(std::move(wait), succeeds ? GateStatus() : status,
             {generation_, round_, step_}, wakeups);
}

void SyncGate::EndAcquires(const GateStatus& status, Wakeups* wakeups) {
  acquires_.merge(sated_acquires_);
  while (!acquires_.empty()) {
    EndAcquireForAll(acquires_.extract(acquires_.begin()), status, wakeups);
  }
}

void SyncGate::EndUpdaterWaits(const GateStatus& status, Wakeups* wakeups) {
  for (auto& entry : updater_waits_) {
    wakeups->push_back(
        [done = std::move(entry.second.done), status] { done(status, {}); });
  }
  updater_waits_.clear();
}

void SyncGate::EndTraining(const GateStatus& status, Wakeups* wakeups) {
  if (end_of_waits_.ok()) {
    end_of_waits_ = status;
    if (generation_ == 0) {
      acquires_.merge(early_acquires_);
    }
    EndAcquires(status, wakeups);
    EndUpdaterWaits(status, wakeups);
  }
}

void SyncGate::Pump(Wakeups* wakeups) {
  for (auto wait = updater_waits_.begin(); wait != updater_waits_.end();) {
    wait = PumpUpdater(&wait->second, wakeups) ? updater_waits_.erase(wait)
                                               : std::next(wait);
  }
  if (IsOpen()) {
    PumpAcquires(wakeups);
  }
}

bool SyncGate::PumpUpdater(UpdaterWait* wait, Wakeups* wakeups) {
  switch (wait->kind) {
    case UpdaterWait::Kind::kQuorum:
      if (!RoundIsFull()) {
        return false;
      }
      break;
    case UpdaterWait::Kind::kFlush:
      if (in_flight_ > 0) {
        return false;
      }
      // Nothing to apply: the round goes on.
      flushing_ = committed_ > 0;
      break;
    case UpdaterWait::Kind::kDrain:
      if (in_flight_ > 0 || flushing_ || RoundIsFull()) {
        return false;
      }
      break;
  }
  wakeups->push_back(
      [done = std::move(wait->done), quorum = Quorum{round_, committed_}] {
        done({}, quorum);
      });
  return true;
}

void SyncGate::PumpAcquires(Wakeups* wakeups) {
  const int64_t share = Share();
  if (round_ != pumped_round_ || share > pumped_share_ || !passes_.empty()) {
    acquires_.merge(sated_acquires_);
  }
  pumped_round_ = round_;
  pumped_share_ = share;
  auto wait = acquires_.begin();
  while (wait != acquires_.end() &&
         (RoundHasRoom() || !passes_.empty() || !updater_started_)) {
    const auto next = std::next(wait);
    Worker& worker = *wait->second.worker;
    if (wait->second.kind == AcquireKind::kNext && !passes_.empty()) {
      EndAcquire(acquires_.extract(wait), {}, TakePass(), wakeups);
    } else if (HasGivenItsShare(worker)) {
      sated_acquires_.insert(acquires_.extract(wait));
    } else if (RoundHasRoom()) {
      worker.state = Worker::State::kPermitted;
      worker.round = round_;
      worker.permit_number = wait->first;
      permitted_++;
      const Permit permit = {generation_, round_, step_, wait->first};
      EndAcquire(acquires_.extract(wait), {}, permit, wakeups);
    } else if (wait->second.kind == AcquireKind::kFirst && !updater_started_) {
      // Without a permit: waiting could be for an updater that comes later.
      EndAcquire(acquires_.extract(wait), {}, {generation_, round_, step_},
                 wakeups);
    }
    wait = next;
  }
}

SyncGate::Permit SyncGate::TakePass() {
  const Permit permit = passes_.front().permit;
  if (--passes_.front().num_left == 0) {
    passes_.pop_front();
  }
  return permit;
}

GateStatus SyncGate::CheckGeneration(int64_t generation) const {
  if (generation_ == 0) {
    return {GateStatus::kFailedPrecondition, "The gate was never opened."};
  }
  if (generation != generation_) {
    return {GateStatus::kAborted,
            "Generation " + std::to_string(generation) +
                " of the gate is over; the present one is " +
                std::to_string(generation_) + "."};
  }
  return {};
}

SyncGate::WaitId SyncGate::AddUpdaterWait(int64_t generation,
                                          UpdaterWait::Kind kind, Time timeout,
                                          QuorumCallback done) {
  Wakeups wakeups;
  WaitId id;
  {
    std::lock_guard<std::mutex> lock(mu_);
    id = next_wait_id_++;
    GateStatus status =
        FirstError({CheckGeneration(generation), end_of_waits_});
    if (!status.ok()) {
      wakeups.push_back([done = std::move(done), status] { done(status, {}); });
    } else {
      if (kind != UpdaterWait::Kind::kDrain) {  // that is the chief's
        RenewUpdater();
      }
      const Time deadline = timeout.count() > 0 ? clock_() + timeout : kNever;
      updater_waits_.insert({id, {kind, deadline, std::move(done)}});
      flushing_ = flushing_ || kind == UpdaterWait::Kind::kFlush;
      Pump(&wakeups);
    }
  }
  Run(wakeups);
  return id;
}

bool SyncGate::CancelUpdaterWait(WaitId id, const GateStatus& status,
                                 Wakeups* wakeups) {
  const auto wait = updater_waits_.find(id);
  if (wait == updater_waits_.end()) {
    return false;
  }
  const bool is_flush = wait->second.kind == UpdaterWait::Kind::kFlush;
  wakeups->push_back(
      [done = std::move(wait->second.done), status] { done(status, {}); });
  updater_waits_.erase(wait);
  if (is_flush) {
    flushing_ = FlushWaits();
  }
  return true;
}

bool SyncGate::FlushWaits() const {
  return std::any_of(updater_waits_.begin(), updater_waits_.end(),
                     [](const auto& entry) {
                       return entry.second.kind == UpdaterWait::Kind::kFlush;
                     });
}

void SyncGate::RenewUpdater() {
  updater_seen_ = clock_();
  updater_started_ = true;
}

void SyncGate::ExpireWorkers(Time now) {
  std::vector<Worker*> expired;
  const Time first_step_lease = FirstStepLease();
  for (auto& entry : workers_) {
    Worker& worker = entry.second;
    if (!IsLive(worker) || worker.waiting != 0 ||
        LeaseEnd(worker, first_step_lease) > now) {
      continue;
    }
    expired.push_back(&worker);
    if (HoldsPermit(worker) || IsInFlight(worker)) {
      worker.stats.expired++;
      sums_.expired++;
    }
    worker.num_expired_pushes += IsInFlight(worker) ? 1 : 0;
  }
  // Only now: the first of them that was in flight takes the round with it.
  for (Worker* worker : expired) {
    Release(worker);
    SetPresence(Worker::Presence::kExpired, worker);
  }
  if (IsOpen() && opened_at_ + start_lease_ <= now) {
    unheard_of_expired_ = true;
  }
}

void SyncGate::ExpireUpdater(Time now, Wakeups* wakeups) {
  for (auto entry = updater_waits_.begin(); entry != updater_waits_.end();) {
    UpdaterWait& wait = entry->second;
    if (wait.kind != UpdaterWait::Kind::kDrain) {
      // An updater that waits is not silent.
      updater_seen_ = std::max(updater_seen_, std::min(now, wait.deadline));
    }
    if (wait.deadline > now) {
      ++entry;
      continue;
    }
    wakeups->push_back([done = std::move(wait.done)] {
      done({GateStatus::kDeadlineExceeded, "No full round in this time."}, {});
    });
    entry = updater_waits_.erase(entry);
  }
  if (IsOpen() && updater_lease_.count() > 0 && UpdaterLeaseEnd() <= now) {
    EndTraining({GateStatus::kDeadlineExceeded,
                 "The updater has not called for its lease of " +
                     std::to_string(
                         std::chrono::duration_cast<std::chrono::milliseconds>(
                             updater_lease_)
                             .count()) +
                     " ms: the coordinator is gone or stuck."},
                wakeups);
  }
}

}  // namespace tf_syncrep
