package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func workloadChecks() []check {
	return []check{
		{"a Deployment over both nodes", deploymentSpread},
		{"a Deployment grows and shrinks", deploymentScale},
		{"a Deployment rolls on and back", deploymentRolls},
		{"a Deployment that recreates", deploymentRecreates},
		{"a roll-out that gets stuck keeps the old pods", deploymentStuck},
		{"a ReplicaSet replaces what is deleted", replaced},
		{"a StatefulSet goes in order", statefulOrder},
		{"a StatefulSet's pod comes back under its name", statefulName},
		{"a StatefulSet rolls from the last", statefulRolls},
		{"a DaemonSet is on every node", daemonEverywhere},
		{"a DaemonSet rolls", daemonRolls},
		{"a Job with several completions", jobCompletions},
		{"a Job that gives up", jobGivesUp},
		{"a Job counts a program that is not there", jobNoProgram},
		{"an indexed Job", jobIndexed},
		{"a Job's policy for failures", jobPolicy},
		{"a suspended Job", jobSuspended},
		{"a Job goes when its time is over", jobTTL},
		{"a CronJob", cronJob},
		{"pods of a higher priority take the place of others", preemption},
	}
}

func deploymentSpread(t *testing.T, s *space) {
	p := pod("spread", sleeper("main"))
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
	}}
	s.create(t, s.ns, deployment(4, p))
	waitFor(t, s.cluster, deployments(s.ns, "spread"), "is available", available(4))
	on := map[string]int{}
	for _, p := range s.list(t, "app=spread") {
		on[p.Spec.NodeName]++
	}
	if on["node1"] != 2 || on["node2"] != 2 {
		t.Errorf("%v", on)
	}
}

// list are the pods of a selector that nobody has deleted.
func (s *space) list(t *testing.T, selector string) []corev1.Pod {
	t.Helper()
	list, err := s.api.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func deploymentScale(t *testing.T, s *space) {
	s.create(t, s.ns, deployment(1, pod("scale", sleeper("main"))))
	d := deployments(s.ns, "scale")
	waitFor(t, s.cluster, d, "has one", available(1))
	for _, n := range []int32{5, 2, 0, 1} {
		patch(t, s.cluster, d, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
		waitFor(t, s.cluster, d, fmt.Sprintf("has %d", n), available(n))
	}
}

func versionEnv(p *corev1.Pod, v string) *corev1.Pod {
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VERSION", Value: v}}
	return p
}

// setVersion changes a workload's template.
func setVersion(v string) string {
	return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","env":[{"name":"VERSION","value":%q}]}]}}}}`, v)
}

// versions returns the values of the variable of a selector's pods.
func (s *space) versions(t *testing.T, selector string) []string {
	t.Helper()
	var all []string
	for _, p := range s.list(t, selector) {
		all = append(all, p.Spec.Containers[0].Env[0].Value)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func deploymentRolls(t *testing.T, s *space) {
	p := versionEnv(pod("roll", sleeper("main")), "1")
	s.create(t, s.ns, deployment(4, p))
	d := deployments(s.ns, "roll")
	waitFor(t, s.cluster, d, "has version 1", available(4))
	for _, v := range []string{"2", "1"} {
		patch(t, s.cluster, d, setVersion(v))
		fewest := int32(4)
		waitFor(t, s.cluster, d, "has version "+v, func(d *appsv1.Deployment) bool {
			fewest = min(fewest, d.Status.AvailableReplicas)
			return available(4)(d)
		})
		if fewest < 3 {
			t.Errorf("%d pods were left while it rolled, want 3", fewest)
		}
		if got := s.versions(t, "app=roll"); !slices.Equal(got, []string{v}) {
			t.Errorf("the pods have %v, want %s", got, v)
		}
	}
}

func deploymentRecreates(t *testing.T, s *space) {
	o := deployment(2, versionEnv(pod("recreate", sleeper("main")), "1"))
	o.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	s.create(t, s.ns, o)
	d := deployments(s.ns, "recreate")
	waitFor(t, s.cluster, d, "has version 1", available(2))
	patch(t, s.cluster, d, setVersion("2"))
	waitFor(t, s.cluster, d, "has version 2", available(2))
	if got := s.versions(t, "app=recreate"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("%v", got)
	}
}

func deploymentStuck(t *testing.T, s *space) {
	o := deployment(3, pod("stuck", sleeper("main")))
	o.Spec.ProgressDeadlineSeconds = ptr.To(int32(10))
	o.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(1))}
	s.create(t, s.ns, o)
	d := deployments(s.ns, "stuck")
	waitFor(t, s.cluster, d, "is available", available(3))
	patch(t, s.cluster, d, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"registry.example/none:2"}]}}}}`)
	waitFor(t, s.cluster, d, "gets stuck", func(d *appsv1.Deployment) bool {
		return slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Reason == "ProgressDeadlineExceeded" }) && d.Status.AvailableReplicas == 3
	})
	patch(t, s.cluster, d, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, busybox))
	waitFor(t, s.cluster, d, "is back", available(3))
}

func replaced(t *testing.T, s *space) {
	s.create(t, s.ns, deployment(2, pod("replaced", sleeper("main"))))
	d := deployments(s.ns, "replaced")
	waitFor(t, s.cluster, d, "is available", available(2))
	victim := s.list(t, "app=replaced")[0].Name
	remove(t, s.cluster, pods(s.ns, victim))
	gone(t, s.cluster, pods(s.ns, victim))
	waitFor(t, s.cluster, d, "is available again", available(2))
}

func statefulSet(replicas int32, p *corev1.Pod) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: appsv1.StatefulSetSpec{
		Replicas: &replicas, ServiceName: p.Name, Selector: &metav1.LabelSelector{MatchLabels: p.Labels}, Template: template(p),
	}}
}

func settledSet(replicas int32) func(*appsv1.StatefulSet) bool {
	return func(o *appsv1.StatefulSet) bool {
		return o.Status.ObservedGeneration == o.Generation && o.Status.AvailableReplicas == replicas && o.Status.Replicas == replicas && o.Status.UpdatedReplicas == replicas
	}
}

func statefulOrder(t *testing.T, s *space) {
	s.create(t, s.ns, statefulSet(3, pod("order", sleeper("main"))))
	waitFor(t, s.cluster, statefulSets(s.ns, "order"), "is available", settledSet(3))
	var last metav1.Time
	for i := range 3 {
		p := s.wait(t, fmt.Sprintf("order-%d", i), "is ready", ready)
		if p.CreationTimestamp.Before(&last) {
			t.Errorf("%s was made before its predecessor was ready", p.Name)
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				last = c.LastTransitionTime
			}
		}
	}
}

func statefulName(t *testing.T, s *space) {
	s.create(t, s.ns, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "name"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "name"}}})
	s.create(t, s.ns, statefulSet(2, pod("name", peer())))
	waitFor(t, s.cluster, statefulSets(s.ns, "name"), "is available", settledSet(2))
	before := s.wait(t, "name-1", "is ready", ready)
	s.resolves(t, "name-0", "name-1.name", before.Status.PodIP)
	remove(t, s.cluster, pods(s.ns, "name-1"))
	after := s.wait(t, "name-1", "is another one", func(p *corev1.Pod) bool { return p.UID != before.UID && ready(p) })
	s.resolves(t, "name-0", "name-1.name", after.Status.PodIP)
	if got := s.sh(t, "name-1", "hostname"); got != "name-1\n" {
		t.Errorf("%q", got)
	}
}

func statefulRolls(t *testing.T, s *space) {
	s.create(t, s.ns, statefulSet(3, versionEnv(pod("rolls", sleeper("main")), "1")))
	q := statefulSets(s.ns, "rolls")
	waitFor(t, s.cluster, q, "has version 1", settledSet(3))
	patch(t, s.cluster, q, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}`)
	patch(t, s.cluster, q, setVersion("2"))
	s.wait(t, "rolls-2", "has version 2", func(p *corev1.Pod) bool { return p.Spec.Containers[0].Env[0].Value == "2" && ready(p) })
	for _, name := range []string{"rolls-0", "rolls-1"} {
		if got := s.wait(t, name, "is there", ready).Spec.Containers[0].Env[0].Value; got != "1" {
			t.Errorf("%s below the partition has version %s", name, got)
		}
	}
	patch(t, s.cluster, q, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	waitFor(t, s.cluster, q, "has version 2", settledSet(3))
}

func daemonSet(p *corev1.Pod) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: p.Labels}, Template: template(p)}}
}

func everywhere(d *appsv1.DaemonSet) bool {
	return d.Status.ObservedGeneration == d.Generation && d.Status.DesiredNumberScheduled == 2 && d.Status.NumberAvailable == 2 && d.Status.UpdatedNumberScheduled == 2
}

func daemonEverywhere(t *testing.T, s *space) {
	s.create(t, s.ns, daemonSet(pod("daemon", sleeper("main"))))
	waitFor(t, s.cluster, daemonSets(s.ns, "daemon"), "is everywhere", everywhere)
	var on []string
	for _, p := range s.list(t, "app=daemon") {
		on = append(on, p.Spec.NodeName)
	}
	if slices.Sort(on); !slices.Equal(on, []string{"node1", "node2"}) {
		t.Errorf("%v", on)
	}
}

func daemonRolls(t *testing.T, s *space) {
	s.create(t, s.ns, daemonSet(versionEnv(pod("daemon", sleeper("main")), "1")))
	waitFor(t, s.cluster, daemonSets(s.ns, "daemon"), "has version 1", everywhere)
	patch(t, s.cluster, daemonSets(s.ns, "daemon"), setVersion("2"))
	waitFor(t, s.cluster, daemonSets(s.ns, "daemon"), "has version 2", everywhere)
	if got := s.versions(t, "app=daemon"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("%v", got)
	}
}

func job(p *corev1.Pod, change func(*batchv1.JobSpec)) *batchv1.Job {
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	o := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: batchv1.JobSpec{Template: template(p)}}
	if change != nil {
		change(&o.Spec)
	}
	return o
}

// over returns the end of a Job, "" while it runs.
func over(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c.Type
		}
	}
	return ""
}

// jobEnds runs a Job to its end.
func (s *space) jobEnds(t *testing.T, o *batchv1.Job, want batchv1.JobConditionType) *batchv1.Job {
	t.Helper()
	s.create(t, s.ns, o)
	j := waitFor(t, s.cluster, jobs(s.ns, o.Name), "is over", func(j *batchv1.Job) bool { return over(j) != "" })
	if over(j) != want {
		t.Errorf("%s, want %s: %+v", over(j), want, j.Status)
	}
	return j
}

func jobCompletions(t *testing.T, s *space) {
	j := s.jobEnds(t, job(once("several", "echo done"), func(j *batchv1.JobSpec) { j.Completions, j.Parallelism = ptr.To(int32(6)), ptr.To(int32(3)) }), batchv1.JobComplete)
	if j.Status.Succeeded != 6 || j.Status.Failed != 0 {
		t.Errorf("%+v", j.Status)
	}
}

func jobGivesUp(t *testing.T, s *space) {
	j := s.jobEnds(t, job(once("bad", "exit 1"), func(j *batchv1.JobSpec) { j.BackoffLimit = ptr.To(int32(1)) }), batchv1.JobFailed)
	if j.Status.Failed != 2 {
		t.Errorf("%+v", j.Status)
	}
}

func jobNoProgram(t *testing.T, s *space) {
	p := once("none", "")
	p.Spec.Containers[0].Command = []string{"/no/such/program"}
	j := s.jobEnds(t, job(p, func(j *batchv1.JobSpec) { j.BackoffLimit = ptr.To(int32(1)) }), batchv1.JobFailed)
	if j.Status.Failed != 2 {
		t.Errorf("%+v", j.Status)
	}
}

func jobIndexed(t *testing.T, s *space) {
	j := s.jobEnds(t, job(once("indexed", "echo $JOB_COMPLETION_INDEX $(hostname)"), func(j *batchv1.JobSpec) {
		j.Completions, j.Parallelism, j.CompletionMode = ptr.To(int32(3)), ptr.To(int32(3)), ptr.To(batchv1.IndexedCompletion)
	}), batchv1.JobComplete)
	if j.Status.CompletedIndexes != "0-2" {
		t.Errorf("%+v", j.Status)
	}
	for _, p := range s.list(t, "job-name=indexed") {
		i := p.Labels["batch.kubernetes.io/job-completion-index"]
		if out := s.output(t, p.Name, &corev1.PodLogOptions{}); out != i+" indexed-"+i+"\n" {
			t.Errorf("%s: %q", p.Name, out)
		}
	}
}

func jobPolicy(t *testing.T, s *space) {
	j := s.jobEnds(t, job(once("policy", "exit 42"), func(j *batchv1.JobSpec) {
		j.BackoffLimit = ptr.To(int32(100))
		j.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
		}}}
	}), batchv1.JobFailed)
	if j.Status.Failed != 1 {
		t.Errorf("%+v", j.Status)
	}
}

func jobSuspended(t *testing.T, s *space) {
	s.create(t, s.ns, job(pod("suspended", sleeper("main")), nil))
	active := func(n int32) func(*batchv1.Job) bool {
		return func(j *batchv1.Job) bool {
			return j.Status.Active == n && (n == 0 || ptr.Deref(j.Status.Ready, 0) == n)
		}
	}
	q := jobs(s.ns, "suspended")
	waitFor(t, s.cluster, q, "runs", active(1))
	patch(t, s.cluster, q, `{"spec":{"suspend":true}}`)
	waitFor(t, s.cluster, q, "is suspended", active(0))
	patch(t, s.cluster, q, `{"spec":{"suspend":false}}`)
	waitFor(t, s.cluster, q, "runs again", active(1))
}

func jobTTL(t *testing.T, s *space) {
	s.create(t, s.ns, job(once("ttl", "true"), func(j *batchv1.JobSpec) { j.TTLSecondsAfterFinished = ptr.To(int32(0)) }))
	gone(t, s.cluster, jobs(s.ns, "ttl"))
}

func cronJob(t *testing.T, s *space) {
	s.create(t, s.ns, &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "cron"}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: job(once("cron", "echo cron"), nil).Spec},
	}})
	waitFor(t, s.cluster, cronJobs(s.ns, "cron"), "has run once", func(c *batchv1.CronJob) bool { return c.Status.LastSuccessfulTime != nil })
	for _, p := range s.list(t, "batch.kubernetes.io/job-name") {
		if out := s.output(t, p.Name, &corev1.PodLogOptions{}); !strings.HasPrefix(p.Name, "cron-") || p.Status.Phase == corev1.PodSucceeded && out != "cron\n" {
			t.Errorf("%s: %q", p.Name, out)
		}
	}
}

// preemption: a resource exists once, on one node.
func preemption(t *testing.T, s *space) {
	const widget = "example.org/widget"
	if _, err := s.api.CoreV1().Nodes().Patch(t.Context(), "node1", types.StrategicMergePatchType, []byte(`{"status":{"capacity":{"`+widget+`":"1"}}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, s.cluster, nodes("node1"), "has a widget", func(n *corev1.Node) bool { _, ok := n.Status.Allocatable[widget]; return ok })
	s.create(t, "", &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Value: 1000})
	one := func(name string) *corev1.Pod {
		p := pod(name, sleeper("main"))
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{widget: resource.MustParse("1")}
		return p
	}
	s.run(t, one("low"))
	high := one("high")
	high.Spec.PriorityClassName = s.ns
	s.run(t, high)
	gone(t, s.cluster, pods(s.ns, "low"))
}
