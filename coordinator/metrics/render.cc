#include "coordinator/metrics/render.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>
#include <vector>

#include "common/version.h"

namespace fedshard::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Builds the families one after the other; each has one owner and so one HELP line.
class Page {
 public:
  void Begin(MetricType type, const std::string& name, const std::string& help) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
  }
  // Into the family begun last.
  void Add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  void AddHistogram(const service::Histogram& histogram) {
    ClientMetric metric;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < histogram.counts().size(); ++i) {
      cumulative += histogram.counts()[i];
      const bool last = i == histogram.bounds().size();
      metric.histogram.bucket.push_back(
          {cumulative, last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i]});
    }
    metric.histogram.sample_count = cumulative;
    metric.histogram.sample_sum = histogram.sum();
    families_.back().metric.push_back(std::move(metric));
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddCluster(const Snapshot& snapshot, Page& page) {
  page.Begin(MetricType::Gauge, "fedshard_build_info", "Version of the coordinator; always 1.");
  page.Add({{"version", ProjectVersion()}, {"revision", Revision()}}, 1);
  page.Begin(MetricType::Gauge, "fedshard_coordinator_start_time_seconds",
             "When the coordinator started, in seconds since the Unix epoch.");
  page.Add({}, snapshot.start_time_seconds);
  page.Begin(MetricType::Gauge, "fedshard_nodes", "Registered nodes by state.");
  for (const auto& [state, count] : snapshot.nodes_by_state) page.Add({{"state", state}}, count);
  page.Begin(MetricType::Gauge, "fedshard_slots", "Slots of active nodes by use.");
  page.Add({{"state", "used"}}, snapshot.slots_used);
  page.Add({{"state", "free"}}, snapshot.slots_free);
  page.Begin(MetricType::Gauge, "fedshard_jobs", "Jobs of all time by state.");
  for (const auto& [state, count] : snapshot.jobs_by_state) page.Add({{"state", state}}, count);

  page.Begin(MetricType::Gauge, "fedshard_node_up", "1 for an active node, 0 for a lost one.");
  for (const NodeSample& node : snapshot.nodes) page.Add({{"node", node.id}}, node.up);
  page.Begin(MetricType::Gauge, "fedshard_node_heartbeat_age_seconds",
             "Time since the node was last heard of.");
  for (const NodeSample& node : snapshot.nodes) {
    page.Add({{"node", node.id}}, node.heartbeat_age_seconds);
  }
}

void AddJobCounters(const std::vector<JobSample>& jobs, Page& page) {
  page.Begin(MetricType::Counter, "fedshard_job_steps_total",
             "Optimizer steps of the job's slowest group, uncommitted ones included.");
  for (const JobSample& job : jobs) page.Add({{"train_job", job.id}}, job.steps);
  page.Begin(MetricType::Counter, "fedshard_job_committed_tokens_total",
             "Tokens of committed rounds, all groups.");
  for (const JobSample& job : jobs) page.Add({{"train_job", job.id}}, job.committed_tokens);
  page.Begin(MetricType::Counter, "fedshard_job_rounds_total", "Decided rounds by result.");
  for (const JobSample& job : jobs) {
    page.Add({{"train_job", job.id}, {"result", "committed"}}, job.rounds_committed);
    page.Add({{"train_job", job.id}, {"result", "aborted"}}, job.rounds_aborted);
  }
  page.Begin(MetricType::Counter, "fedshard_job_sent_bytes_total",
             "Tensor payload that the job's ranks have sent, padding included, by tier; counted "
             "when their round is voted on.");
  for (const JobSample& job : jobs) {
    page.Add({{"train_job", job.id}, {"tier", "shard"}}, job.shard_bytes);
    page.Add({{"train_job", job.id}, {"tier", "replica"}}, job.replica_bytes);
    page.Add({{"train_job", job.id}, {"tier", "federation"}}, job.federation_bytes);
  }
}

void AddJobGauges(const std::vector<JobSample>& jobs, Page& page) {
  const auto group_labels = [](const JobSample& job, const GroupSample& group) {
    return Labels{{"train_job", job.id}, {"group", std::to_string(group.group)}};
  };
  page.Begin(MetricType::Gauge, "fedshard_job_loss_nats",
             "Training loss of the group's last step, in nats per token.");
  for (const JobSample& job : jobs) {
    for (const GroupSample& group : job.groups) page.Add(group_labels(job, group), group.loss);
  }
  page.Begin(MetricType::Gauge, "fedshard_job_gradient_norm",
             "Global gradient norm of the group's last step, before clipping.");
  for (const JobSample& job : jobs) {
    for (const GroupSample& group : job.groups) {
      page.Add(group_labels(job, group), group.gradient_norm);
    }
  }
  page.Begin(MetricType::Gauge, "fedshard_job_learning_rate", "Learning rate of the last step.");
  for (const JobSample& job : jobs) {
    if (job.learning_rate) page.Add({{"train_job", job.id}}, *job.learning_rate);
  }
  page.Begin(MetricType::Gauge, "fedshard_job_validation_loss_nats",
             "Loss of the last complete evaluation, in nats per token.");
  for (const JobSample& job : jobs) {
    if (job.validation_loss) page.Add({{"train_job", job.id}}, *job.validation_loss);
  }
  page.Begin(MetricType::Gauge, "fedshard_job_tokens_per_second",
             "Tokens per second over the last ten seconds, all groups.");
  for (const JobSample& job : jobs) page.Add({{"train_job", job.id}}, job.tokens_per_second);
}

void AddHistograms(const Snapshot& snapshot, Page& page) {
  page.Begin(MetricType::Histogram, "fedshard_step_duration_seconds",
             "Duration of optimizer steps, all jobs.");
  page.AddHistogram(snapshot.step_seconds);
  page.Begin(MetricType::Histogram, "fedshard_round_duration_seconds",
             "From a round's leases to its decision, all jobs.");
  page.AddHistogram(snapshot.round_seconds);
  page.Begin(MetricType::Histogram, "fedshard_round_decision_seconds",
             "From a round's plan to its decision, averaging included, all jobs.");
  page.AddHistogram(snapshot.decision_seconds);
}

}  // namespace

std::string Render(const Snapshot& snapshot) {
  Page page;
  AddCluster(snapshot, page);
  AddJobCounters(snapshot.jobs, page);
  AddJobGauges(snapshot.jobs, page);
  AddHistograms(snapshot, page);
  return page.Text();
}

}  // namespace fedshard::metrics
