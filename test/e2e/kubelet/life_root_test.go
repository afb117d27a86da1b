package kubelet

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func initContainers(t *testing.T, n *node) {
	p := once("init", "echo main >>/share/order; cat /share/order")
	side := shell("side", "trap 'echo side ends; exit 0' TERM; echo side >>/share/order; touch /up; while :; do sleep 0.1; done")
	side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	side.StartupProbe = probe(command("test -f /up"), 100)
	p.Spec.InitContainers = []corev1.Container{shell("one", "echo one >>/share/order"), side, shell("two", "echo two >>/share/order")}
	if out := n.succeeds(t, share(p, emptyDir())); out != "one\nside\ntwo\nmain\n" {
		t.Errorf("the order was %q", out)
	}
	n.said(t, "init", "side", "side ends")
	over := n.pod(t, "init")
	for _, c := range []string{"one", "side", "two", "main"} {
		if s := status(over, c); s.State.Terminated == nil || s.State.Terminated.Reason != "Completed" || s.RestartCount != 0 {
			t.Errorf("%s: %+v", c, s)
		}
	}
}

func command(script string) corev1.ProbeHandler {
	return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", script}}}
}

func probe(h corev1.ProbeHandler, failures int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: failures}
}

// probed returns a pod with a container for each kind of probe, all healthy while /share/ok exists.
func probed(name string) *corev1.Pod {
	const waits = "while :; do while [ ! -f /share/ok ]; do sleep 0.1; done; httpd -f -p 7003 & pid=$!; while [ -f /share/ok ]; do sleep 0.1; done; kill $pid; wait $pid; done"
	serve := corev1.Container{Name: "serve", Image: busybox, Command: []string{"subject", "serve", "7001", "7002", "/share/ok"}}
	p := pod(name, shell("exec", idle), serve, *serve.DeepCopy(), shell("tcp", waits))
	p.Spec.Containers[1].Name = "grpc"
	p.Spec.Containers[2].Name = "http"
	p.Spec.Containers[2].Command = []string{"subject", "serve", "7004", "7005", "/share/ok"}
	return share(p, emptyDir())
}

func handlers() []corev1.ProbeHandler {
	return []corev1.ProbeHandler{
		command("test -f /share/ok"),
		{GRPC: &corev1.GRPCAction{Port: 7001}},
		{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(7005), Path: "/"}},
		{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(7003)}},
	}
}

func readinessProbes(t *testing.T, n *node) {
	p := probed("readiness")
	for i, h := range handlers() {
		p.Spec.Containers[i].ReadinessProbe = probe(h, 1)
	}
	n.add(t, p)
	all := func(want bool) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodRunning && !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil || s.Ready != want })
		}
	}
	n.wait(t, p.Name, "runs and is not ready", all(false))
	for range 2 {
		n.exec(t, p.Name, "exec", "touch /share/ok")
		n.wait(t, p.Name, "is ready", all(true))
		n.exec(t, p.Name, "exec", "rm /share/ok")
		n.wait(t, p.Name, "is ready no more", all(false))
	}
	for _, s := range n.pod(t, p.Name).Status.ContainerStatuses {
		if s.RestartCount != 0 {
			t.Errorf("%s was started %d times again", s.Name, s.RestartCount)
		}
	}
}

func livenessProbes(t *testing.T, n *node) {
	p := probed("liveness")
	p.Spec.InitContainers = []corev1.Container{shell("init", "touch /share/ok")}
	p.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "share", MountPath: "/share"}}
	for i, h := range handlers() {
		p.Spec.Containers[i].StartupProbe = probe(h, 60)
		p.Spec.Containers[i].LivenessProbe = probe(h, 2)
	}
	n.run(t, p)
	n.exec(t, p.Name, "exec", "rm /share/ok")
	n.wait(t, p.Name, "has had all containers killed", func(p *corev1.Pod) bool {
		return !slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.RestartCount == 0 })
	})
	n.wait(t, p.Name, "tells how they ended", func(p *corev1.Pod) bool {
		last := status(p, "exec").LastTerminationState.Terminated
		return last != nil && last.ExitCode == 0 && last.Reason == "Completed"
	})
}

func restartPolicies(t *testing.T, n *node) {
	always := pod("always", shell("main", "echo run; exit 3"))
	n.add(t, always)
	n.add(t, func() *corev1.Pod {
		p := share(once("onfailure", "[ -f /share/been ] && exit 0; touch /share/been; exit 4"), emptyDir())
		p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		return p
	}())
	n.add(t, once("never", "exit 5"))
	n.add(t, func() *corev1.Pod {
		p := once("nothing", "")
		p.Spec.Containers[0].Command = []string{"/bin/nothing"}
		return p
	}())
	over := n.ended(t, "never")
	if s := status(over, "main").State.Terminated; over.Status.Phase != corev1.PodFailed || s == nil || s.ExitCode != 5 || s.Reason != "Error" {
		t.Errorf("never: %s %+v", over.Status.Phase, s)
	}
	over = n.ended(t, "onfailure")
	if s := status(over, "main"); over.Status.Phase != corev1.PodSucceeded || s.RestartCount != 1 {
		t.Errorf("onfailure: %s, %d restarts", over.Status.Phase, s.RestartCount)
	}
	n.wait(t, "always", "is held back", func(p *corev1.Pod) bool {
		s := status(p, "main")
		last := s.LastTerminationState.Terminated
		return s.RestartCount >= 1 && s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && last != nil && last.ExitCode == 3 && last.Reason == "Error"
	})
	over = n.ended(t, "nothing")
	s := status(over, "main").State.Terminated
	if over.Status.Phase != corev1.PodFailed || s == nil || s.ExitCode != 128 || s.Reason != "StartError" || !strings.Contains(s.Message, `exec "/bin/nothing": no such file or directory`) {
		t.Errorf("nothing: %s %+v", over.Status.Phase, s)
	}
}

func hooks(t *testing.T, n *node) {
	dir := filepath.Join(n.Dir, "hooks")
	mkdir(t, dir)
	c := shell("main", "trap 'echo term >>/share/order; sleep 0.5; echo done >>/share/order; exit 0' TERM; while [ ! -f /share/order ]; do sleep 0.1; done; echo saw it; while :; do sleep 0.1; done")
	c.Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "echo poststart >>/share/order"}}},
		PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "sleep 0.5; echo prestop >>/share/order"}}},
	}
	p := share(pod("hooks", c), hostPath(dir))
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(60))
	n.run(t, p)
	n.said(t, "hooks", "main", "saw it")
	n.remove(t, "hooks")
	if b, _ := os.ReadFile(filepath.Join(dir, "order")); string(b) != "poststart\nprestop\nterm\ndone\n" {
		t.Errorf("the order was %q", b)
	}
}

func graceRunsOut(t *testing.T, n *node) {
	dir := filepath.Join(n.Dir, "grace")
	mkdir(t, dir)
	p := share(pod("grace", shell("main", "trap 'echo term >>/share/order' TERM; echo up; while :; do sleep 0.1; done")), hostPath(dir))
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(8))
	n.run(t, p)
	n.said(t, "grace", "main", "up")
	n.remove(t, "grace")
	if b, _ := os.ReadFile(filepath.Join(dir, "order")); string(b) != "term\n" {
		t.Errorf("the container wrote %q", b)
	}
}

func limited(c corev1.Container, memory string) corev1.Container {
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourceCPU: resource.MustParse("500m")}
	return c
}

func oomOfMain(t *testing.T, n *node) {
	p := once("oom-main", "exec subject eat 200")
	p.Spec.Containers[0] = limited(p.Spec.Containers[0], "64Mi")
	n.add(t, p)
	if s := status(n.ended(t, p.Name), "main").State.Terminated; s == nil || s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("%+v", s)
	}
}

// A killed child, and a later kill of main for another reason, are no OOMKilled.
func oomOfChild(t *testing.T, n *node) {
	eat := "subject eat 200; echo child $?; "
	first := once("oom-child", eat+"exit 0")
	first.Spec.Containers[0] = limited(first.Spec.Containers[0], "64Mi")
	n.add(t, first)
	c := limited(shell("main", "trap '' TERM; "+eat+"touch /tmp/eaten; while :; do sleep 0.1; done"), "64Mi")
	c.LivenessProbe = probe(command("! test -f /tmp/eaten"), 1)
	second := pod("oom-later", c)
	second.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
	n.add(t, second)
	over := n.ended(t, first.Name)
	if s := status(over, "main").State.Terminated; s == nil || s.Reason != "Completed" || s.ExitCode != 0 {
		t.Errorf("after a child's OOM: %+v", s)
	}
	contains(t, n.output(t, first.Name, "main", ""), "child 137")
	last := n.wait(t, second.Name, "was killed", func(p *corev1.Pod) bool { return status(p, "main").LastTerminationState.Terminated != nil })
	if s := status(last, "main").LastTerminationState.Terminated; s.Reason != "Error" || s.ExitCode != 137 {
		t.Errorf("killed by its liveness after a child's OOM: %+v", s)
	}
}
