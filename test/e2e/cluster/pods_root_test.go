package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func podChecks() []check {
	return []check{
		{"that end well are Succeeded", endsWell},
		{"that end badly are Failed", endsBadly},
		{"OnFailure starts again until it is good", onFailure},
		{"Always starts again what ended well", always},
		{"CrashLoopBackOff", crashLoop},
		{"a program that is not there", noProgram},
		{"an image that is not there", noImage},
		{"an image name that is none", badImageName},
		{"init containers run in order", initInOrder},
		{"an init container that fails", initFails},
		{"an init container that fails is tried again", initTriedAgain},
		{"a sidecar starts before and ends after main", sidecar},
		{"a sidecar keeps no Job from its end", sidecarEnds},
		{"readiness by exec comes and goes", execReadiness},
		{"readiness by HTTP", httpReadiness},
		{"readiness by gRPC", grpcReadiness},
		{"liveness starts again", liveness},
		{"startup holds liveness back", startup},
		{"postStart runs before ready", postStart},
		{"postStart that fails", postStartFails},
		{"preStop runs before SIGTERM", preStop},
		{"preStop sleeps", preStopSleep},
		{"the grace runs out", graceRunsOut},
		{"a deadline", deadline},
		{"the termination message", terminationMessage},
		{"the termination message from the log", terminationLog},
		{"OOMKilled", oomKilled},
		{"limits are the cgroup's", limits},
	}
}

func endsWell(t *testing.T, s *space) {
	if out := s.succeeds(t, once("well", "echo well")); out != "well\n" {
		t.Errorf("%q", out)
	}
	p := s.ended(t, "well")
	e := state(p, "main")
	if e.RestartCount != 0 || e.State.Terminated == nil || e.State.Terminated.Reason != "Completed" || e.State.Terminated.FinishedAt.Before(&e.State.Terminated.StartedAt) {
		t.Errorf("%+v", e)
	}
	if !strings.HasPrefix(e.ContainerID, "longshore://") || !strings.Contains(e.ImageID, "sha256:") {
		t.Errorf("container %q of image %q", e.ContainerID, e.ImageID)
	}
}

func endsBadly(t *testing.T, s *space) {
	s.create(t, s.ns, once("badly", "exit 3"))
	e := s.ended(t, "badly")
	if x := state(e, "main").State.Terminated; e.Status.Phase != corev1.PodFailed || x == nil || x.ExitCode != 3 || x.Reason != "Error" {
		t.Errorf("%s %+v", e.Status.Phase, x)
	}
}

func onFailure(t *testing.T, s *space) {
	p := shared(pod("again", shell("main", `echo x >>/share/n; [ $(wc -l </share/n) = 3 ] || exit 1`)))
	p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	s.create(t, s.ns, p)
	if e := s.ended(t, "again"); e.Status.Phase != corev1.PodSucceeded || state(e, "main").RestartCount != 2 {
		t.Errorf("%s %+v", e.Status.Phase, state(e, "main"))
	}
}

// shared gives every container of a pod an emptyDir at /share.
func shared(p *corev1.Pod) *corev1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "share", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].VolumeMounts = append(list[i].VolumeMounts, corev1.VolumeMount{Name: "share", MountPath: "/share"})
		}
	}
	return p
}

func always(t *testing.T, s *space) {
	s.create(t, s.ns, pod("always", shell("main", "exit 0")))
	p := s.wait(t, "always", "starts again", func(p *corev1.Pod) bool { return state(p, "main").RestartCount > 0 })
	if l := state(p, "main").LastTerminationState.Terminated; l == nil || l.ExitCode != 0 || l.Reason != "Completed" {
		t.Errorf("%+v", l)
	}
}

func crashLoop(t *testing.T, s *space) {
	s.create(t, s.ns, pod("crash", shell("main", "exit 1")))
	s.wait(t, "crash", "backs off", waits("main", "CrashLoopBackOff"))
}

func noProgram(t *testing.T, s *space) {
	p := once("no-program", "")
	p.Spec.Containers[0].Command = []string{"no-such-program"}
	s.create(t, s.ns, p)
	e := s.ended(t, "no-program")
	x := state(e, "main").State.Terminated
	if e.Status.Phase != corev1.PodFailed || x == nil || x.ExitCode != 128 || x.Reason != "StartError" || !strings.Contains(x.Message, "no-such-program") {
		t.Errorf("%s %+v", e.Status.Phase, x)
	}
}

func noImage(t *testing.T, s *space) {
	p := pod("no-image", sleeper("main"))
	p.Spec.Containers[0].Image = s.registry.Host + "/none:1"
	s.create(t, s.ns, p)
	s.wait(t, "no-image", "backs off", waits("main", "ImagePullBackOff"))
	if e := s.events(s.ns, "no-image"); !strings.Contains(e, "Failed to pull image") || !strings.Contains(e, "NotFound") {
		t.Errorf("the events say %s", e)
	}
}

func badImageName(t *testing.T, s *space) {
	p := pod("bad-name", sleeper("main"))
	p.Spec.Containers[0].Image = "Not/A/Name"
	s.create(t, s.ns, p)
	s.wait(t, "bad-name", "is refused", waits("main", "InvalidImageName"))
}

func initInOrder(t *testing.T, s *space) {
	p := once("ordered", "echo main >>/share/order; cat /share/order")
	p.Spec.InitContainers = []corev1.Container{shell("first", "echo first >>/share/order"), shell("second", "echo second >>/share/order")}
	if out := s.succeeds(t, shared(p)); out != "first\nsecond\nmain\n" {
		t.Errorf("%q", out)
	}
}

func initFails(t *testing.T, s *space) {
	p := once("init-fails", "echo never")
	p.Spec.InitContainers = []corev1.Container{shell("first", "exit 4")}
	s.create(t, s.ns, p)
	e := s.ended(t, "init-fails")
	if x := state(e, "first").State.Terminated; e.Status.Phase != corev1.PodFailed || x == nil || x.ExitCode != 4 || state(e, "main").ContainerID != "" {
		t.Errorf("%s %+v %+v", e.Status.Phase, x, state(e, "main"))
	}
}

func initTriedAgain(t *testing.T, s *space) {
	p := pod("init-again", sleeper("main"))
	p.Spec.InitContainers = []corev1.Container{shell("first", "[ -f /share/been ] && exit 0; touch /share/been; exit 1")}
	if got := state(s.run(t, shared(p)), "first").RestartCount; got != 1 {
		t.Errorf("started again %d times, want once", got)
	}
}

func sidecar(t *testing.T, s *space) {
	side := shell("side", `trap 'echo side ends >>/share/order; exit 0' TERM; echo side >>/share/order; touch /share/up; while :; do sleep 0.2; done`)
	side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	side.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"ls", "/share/up"}}}, PeriodSeconds: 1, FailureThreshold: 100, TimeoutSeconds: 20}
	p := pod("side", shell("main", `trap 'echo main ends >>/share/order; exit 0' TERM; echo main >>/share/order; while :; do sleep 0.2; done`))
	p.Spec.InitContainers = []corev1.Container{side}
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(20))
	dir := s.hostDir(t)
	p.Spec.Volumes = []corev1.Volume{{Name: "share", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
	mount := []corev1.VolumeMount{{Name: "share", MountPath: "/share"}}
	p.Spec.InitContainers[0].VolumeMounts, p.Spec.Containers[0].VolumeMounts = mount, mount
	s.run(t, p)
	remove(t, s.cluster, pods(s.ns, "side"))
	gone(t, s.cluster, pods(s.ns, "side"))
	if got := read(t, dir+"/order"); got != "side\nmain\nmain ends\nside ends\n" {
		t.Errorf("%q", got)
	}
}

func sidecarEnds(t *testing.T, s *space) {
	side := sleeper("side")
	side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p := once("side-ends", "echo done")
	p.Spec.InitContainers = []corev1.Container{side}
	if out := s.succeeds(t, p); out != "done\n" {
		t.Errorf("%q", out)
	}
}

// probed is a probe once a second, with time for a machine under load.
func probed(h corev1.ProbeHandler, failures int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: failures}
}

func execReadiness(t *testing.T, s *space) {
	p := pod("ready", sleeper("main"))
	p.Spec.Containers[0].ReadinessProbe = probed(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/ready"}}}, 1)
	s.create(t, s.ns, p)
	s.wait(t, "ready", "runs", func(p *corev1.Pod) bool { return state(p, "main").State.Running != nil && !ready(p) })
	for range 2 {
		s.sh(t, "ready", "touch /tmp/ready")
		s.wait(t, "ready", "is ready", ready)
		s.sh(t, "ready", "rm /tmp/ready")
		s.wait(t, "ready", "is ready no more", func(p *corev1.Pod) bool { return !ready(p) })
	}
	if n := state(s.wait(t, "ready", "is there", func(*corev1.Pod) bool { return true }), "main").RestartCount; n != 0 {
		t.Errorf("started again %d times", n)
	}
}

func httpReadiness(t *testing.T, s *space) {
	p := pod("http", peer())
	p.Spec.Containers[0].ReadinessProbe = probed(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("web")}}, 1)
	s.run(t, p)
}

func grpcReadiness(t *testing.T, s *space) {
	p := pod("grpc", shell("main", "touch /tmp/ok; exec subject serve 9090 9091 /tmp/ok"))
	p.Spec.Containers[0].ReadinessProbe = probed(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9090}}, 1)
	s.run(t, p)
	s.sh(t, "grpc", "rm /tmp/ok")
	s.wait(t, "grpc", "is ready no more", func(p *corev1.Pod) bool { return !ready(p) })
}

func liveness(t *testing.T, s *space) {
	p := pod("live", shell("main", "touch /tmp/live; "+idle))
	p.Spec.Containers[0].LivenessProbe = probed(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/live"}}}, 3)
	p.Spec.Containers[0].LivenessProbe.InitialDelaySeconds = 2
	s.run(t, p)
	s.sh(t, "live", "rm /tmp/live")
	s.wait(t, "live", "starts again", func(p *corev1.Pod) bool {
		return state(p, "main").RestartCount == 1 && state(p, "main").State.Running != nil
	})
	if e := s.events(s.ns, "live"); !strings.Contains(e, "Unhealthy") || !strings.Contains(e, "will be restarted") {
		t.Errorf("the events say %s", e)
	}
}

func startup(t *testing.T, s *space) {
	c := sleeper("main")
	file := corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/up"}}}
	c.StartupProbe, c.LivenessProbe = probed(file, 1000), probed(file, 1)
	s.create(t, s.ns, pod("startup", c))
	s.wait(t, "startup", "runs", func(p *corev1.Pod) bool { return state(p, "main").State.Running != nil })
	eventually(t, "a failed startup probe", func() bool { return strings.Contains(s.events(s.ns, "startup"), "Startup probe failed") })
	s.sh(t, "startup", "touch /tmp/up")
	if e := state(s.wait(t, "startup", "is ready", ready), "main"); e.RestartCount != 0 || e.Started == nil || !*e.Started {
		t.Errorf("%+v", e)
	}
}

func postStart(t *testing.T, s *space) {
	p := pod("post-start", sleeper("main"))
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("sh", "-c", "sleep 1; echo after >/tmp/hook")}
	s.run(t, p)
	if out := s.sh(t, "post-start", "cat /tmp/hook"); out != "after\n" {
		t.Errorf("%q", out)
	}
}

func hook(command ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
}

func postStartFails(t *testing.T, s *space) {
	p := pod("post-fails", sleeper("main"))
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook("sh", "-c", "echo no; exit 5")}
	s.create(t, s.ns, p)
	s.wait(t, "post-fails", "starts again", func(p *corev1.Pod) bool { return state(p, "main").RestartCount > 0 })
	if e := s.events(s.ns, "post-fails"); !strings.Contains(e, "FailedPostStartHook") {
		t.Errorf("the events say %s", e)
	}
}

func preStop(t *testing.T, s *space) {
	p := pod("pre-stop", shell("main", `trap 'echo term >>/share/order; exit 0' TERM; while :; do sleep 0.2; done`))
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook("sh", "-c", "sleep 1; echo hook >>/share/order")}
	if got := s.order(t, p); got != "hook\nterm\n" {
		t.Errorf("%q", got)
	}
}

// order runs a pod, ends it, and returns the text of its /share/order.
func (s *space) order(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(20))
	dir := s.hostDir(t)
	p.Spec.Volumes = []corev1.Volume{{Name: "share", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "share", MountPath: "/share"}}
	s.run(t, p)
	remove(t, s.cluster, pods(s.ns, p.Name))
	gone(t, s.cluster, pods(s.ns, p.Name))
	return read(t, dir+"/order")
}

func preStopSleep(t *testing.T, s *space) {
	p := pod("pre-sleep", shell("main", `date +%s >/share/order; trap 'date +%s >>/share/order; exit 0' TERM; while :; do sleep 0.1; done`))
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}
	var started, ended int
	got := s.order(t, p)
	if _, err := fmt.Sscan(got, &started, &ended); err != nil || ended-started < 3 {
		t.Errorf("SIGTERM came before the hook was over: %q", got)
	}
}

func graceRunsOut(t *testing.T, s *space) {
	p := pod("stubborn", shell("main", `trap '' TERM; echo up; while :; do sleep 0.2; done`))
	p.Finalizers = []string{"example.org/looks"}
	s.run(t, p)
	s.said(t, "stubborn", "main", "up")
	remove(t, s.cluster, pods(s.ns, "stubborn"))
	e := s.wait(t, "stubborn", "is over", func(p *corev1.Pod) bool { return state(p, "main").State.Terminated != nil })
	if x := state(e, "main").State.Terminated; x.ExitCode != 137 {
		t.Errorf("%+v", x)
	}
	patch(t, s.cluster, pods(s.ns, "stubborn"), `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.org/looks"]}}`)
	gone(t, s.cluster, pods(s.ns, "stubborn"))
}

func deadline(t *testing.T, s *space) {
	p := pod("deadline", sleeper("main"))
	p.Spec.ActiveDeadlineSeconds = ptr.To(int64(3))
	s.create(t, s.ns, p)
	if e := s.ended(t, "deadline"); e.Status.Phase != corev1.PodFailed || e.Status.Reason != "DeadlineExceeded" {
		t.Errorf("%s %s", e.Status.Phase, e.Status.Reason)
	}
}

func terminationMessage(t *testing.T, s *space) {
	s.create(t, s.ns, once("message", "echo log; echo -n last words >/dev/termination-log; exit 1"))
	if x := state(s.ended(t, "message"), "main").State.Terminated; x.Message != "last words" {
		t.Errorf("%+v", x)
	}
}

func terminationLog(t *testing.T, s *space) {
	p := once("message", "echo the reason; exit 1")
	p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	s.create(t, s.ns, p)
	if x := state(s.ended(t, "message"), "main").State.Terminated; x.Message != "the reason\n" {
		t.Errorf("%+v", x)
	}
}

// limited gives a container limits, which are its requests too.
func limited(c corev1.Container, cpu, memory string) corev1.Container {
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	c.Resources.Requests = c.Resources.Limits.DeepCopy()
	return c
}

func oomKilled(t *testing.T, s *space) {
	p := pod("oom", limited(corev1.Container{Name: "main", Image: busybox, Command: []string{"subject", "eat", "100"}}, "500m", "32Mi"))
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.create(t, s.ns, p)
	if x := state(s.ended(t, "oom"), "main").State.Terminated; x.ExitCode != 137 || x.Reason != "OOMKilled" {
		t.Errorf("%+v", x)
	}
}

// cgroupFiles shows a container its limits of CPU and memory on either version.
const cgroupFiles = `for f in cpu/cpu.cfs_quota_us cpu/cpu.shares memory/memory.limit_in_bytes cpu.max memory.max; do [ -f /sys/fs/cgroup/$f ] && echo $f $(cat /sys/fs/cgroup/$f); done; true`

func limits(t *testing.T, s *space) {
	s.run(t, pod("limits", limited(sleeper("main"), "250m", "64Mi")))
	out := s.sh(t, "limits", cgroupFiles)
	if !strings.Contains(out, "25000") || !strings.Contains(out, "67108864") {
		t.Errorf("%q", out)
	}
	if q := s.wait(t, "limits", "is there", func(*corev1.Pod) bool { return true }).Status.QOSClass; q != corev1.PodQOSGuaranteed {
		t.Errorf("its class is %s", q)
	}
}
