package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// sandboxController is the controller of agent-sandbox (SIG Apps), which run.sh builds from its module if it can; sandboxKinds has the
// module's definitions of its kinds.
const (
	sandboxController = "agent-sandbox-controller"
	sandboxKinds      = "agent-sandbox-crds"
)

// The kinds of agent-sandbox.
var (
	sandboxes = schema.GroupVersionResource{Group: "agents.x-k8s.io", Version: "v1beta1", Resource: "sandboxes"}
	templates = extension("sandboxtemplates")
	warmPools = extension("sandboxwarmpools")
	claimed   = extension("sandboxclaims")
)

func extension(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "extensions.agents.x-k8s.io", Version: "v1beta1", Resource: resource}
}

// sandboxChecks are of sandboxes that the controller of agent-sandbox makes.
func sandboxChecks() []check {
	return []check{
		{"is suspended and resumed", sandboxSuspended},
		{"sleeps while it is idle and wakes for an exec", sandboxSleeps},
		{"is suspended while it sleeps", sandboxSuspendedAsleep},
		{"of a warm pool sleep until they are claimed", poolSleeps},
	}
}

// startSandboxes starts the controller, if run.sh could build it, and makes the kinds before.
func (c *cluster) startSandboxes(t *testing.T) {
	t.Helper()
	program := filepath.Join(c.bin, sandboxController)
	if _, err := os.Stat(program); err != nil {
		return
	}
	files, err := filepath.Glob(filepath.Join(c.bin, sandboxKinds, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no definitions of agent-sandbox: %v", c.bin, err)
	}
	definitions := c.objects(t, schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "")
	for _, file := range files {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(read(t, file)), &o); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		// The conversion between versions is a webhook of the controller in a pod; all objects here have the stored version.
		u := &unstructured.Unstructured{Object: o}
		if err := unstructured.SetNestedField(o, map[string]any{"strategy": "None"}, "spec", "conversion"); err != nil {
			t.Fatal(err)
		}
		if _, err := definitions.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		eventually(t, u.GetName()+" is served", func() bool {
			o, err := definitions.Get(t.Context(), u.GetName(), metav1.GetOptions{})
			return err == nil && of(o, "Established").Status == metav1.ConditionTrue
		})
	}
	c.pki.client("agent-sandbox", "agent-sandbox", "system:masters")
	const probe = "127.0.0.1:18081"
	start(t, c.dir, sandboxController, func(ctx context.Context) bool { return healthy(ctx, http.DefaultClient, "http://"+probe+"/readyz") },
		program, "--kubeconfig="+c.pki.kubeconfig("agent-sandbox"), "--leader-elect=false", "--enable-webhook=false", "--extensions",
		"--metrics-bind-address=0", "--health-probe-bind-address="+probe)
	c.sandboxes = true
}

// objects are the objects of a kind.
func (c *cluster) objects(t *testing.T, kind schema.GroupVersionResource, ns string) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		t.Fatal(err)
	}
	if ns == "" {
		return client.Resource(kind)
	}
	return client.Resource(kind).Namespace(ns)
}

// of returns a condition of an object.
func of(o *unstructured.Unstructured, kind string) metav1.Condition {
	var s struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	b, _ := json.Marshal(o.Object)
	_ = json.Unmarshal(b, &s)
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

// sandboxed makes an object of agent-sandbox with this spec, or skips the check without the controller.
func (s *space) sandboxed(t *testing.T, kind schema.GroupVersionResource, is, name string, spec map[string]any) {
	t.Helper()
	if !s.sandboxes {
		t.Skipf("%s has no %s: run.sh could not build it", s.bin, sandboxController)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kind.GroupVersion().String(), "kind": is, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	if _, err := s.objects(t, kind, s.ns).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create %s %s: %v", is, name, err)
	}
}

// until waits until an object of agent-sandbox has a condition with this status.
func (s *space) until(t *testing.T, kind schema.GroupVersionResource, name, condition string) *unstructured.Unstructured {
	t.Helper()
	var o *unstructured.Unstructured
	eventually(t, fmt.Sprintf("%s %s is %s", kind.Resource, name, condition), func() (ok bool) {
		var err error
		o, err = s.objects(t, kind, s.ns).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && of(o, condition).Status == metav1.ConditionTrue
	})
	return o
}

// mode sets the operating mode of a Sandbox.
func (s *space) mode(t *testing.T, name, mode string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"operatingMode":%q}}`, mode)
	if _, err := s.objects(t, sandboxes, s.ns).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// blueprint returns the pod template of a Sandbox or of a SandboxTemplate. The program counts in its memory only: a new one begins with 1.
func blueprint(t *testing.T, annotations map[string]string) map[string]any {
	t.Helper()
	p := pod("any", shell("main", `trap 'exit 0' TERM; n=0; mkfifo /ask; while :; do read -r x </ask; n=$((n+1)); echo $n >/answer; done`))
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p.Spec)
	if err != nil {
		t.Fatal(err)
	}
	notes := map[string]any{}
	for k, v := range annotations {
		notes[k] = v
	}
	return map[string]any{"podTemplate": map[string]any{"metadata": map[string]any{"annotations": notes}, "spec": spec}}
}

// sleepy is the blueprint of a pod that sleeps when it is idle.
func sleepy(t *testing.T) map[string]any {
	t.Helper()
	return blueprint(t, map[string]string{"longshore.io/sleep-after": "1s"})
}

// counted has the program of a blueprint count once more, by an exec, and returns where it is.
func (s *space) counted(t *testing.T, pod string) string {
	t.Helper()
	return strings.TrimSpace(s.sh(t, pod, `rm -f /answer; echo x >/ask; until [ -s /answer ]; do sleep 0.1; done; cat /answer`))
}

// state returns the state of a pod's container, as its node's agent shows it.
func (s *space) state(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	for _, n := range s.nodes {
		if n.name == p.Spec.NodeName {
			out, err := n.agent.CLI("ps", "-a", "--format", "{{.ID}} {{.State}}", "--no-trunc")
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for line := range strings.Lines(out) {
				id, state, _ := strings.Cut(strings.TrimSpace(line), " ")
				if "longshore://"+id == p.Status.ContainerStatuses[0].ContainerID {
					return state
				}
			}
		}
	}
	return ""
}

// asleep waits until a pod's container sleeps. Kubernetes still sees it ready.
func (s *space) asleep(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := s.wait(t, name, "is ready", ready)
	eventually(t, name+" sleeps", func() bool { return s.state(t, p) == "asleep" })
	again, err := s.api.CoreV1().Pods(s.ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || !ready(again) || again.UID != p.UID {
		t.Fatalf("%v: the sleeping pod is %v", err, again.Status)
	}
	return again
}

// suspended suspends a Sandbox, and asserts that nothing of its pod is left on the node.
func (s *space) suspended(t *testing.T, name string, p *corev1.Pod) {
	t.Helper()
	s.mode(t, name, "Suspended")
	if o := s.until(t, sandboxes, name, "Suspended"); of(o, "Ready").Status != metav1.ConditionFalse {
		t.Errorf("suspended, its conditions are %v", o.Object["status"])
	}
	gone(t, s.cluster, pods(s.ns, p.Name))
	eventually(t, "the containers of "+p.Name+" are gone", func() bool { return s.state(t, p) == "" })
}

// resumed resumes a Sandbox, and asserts that its program has started again, in another pod.
func (s *space) resumed(t *testing.T, name string, before *corev1.Pod) {
	t.Helper()
	s.mode(t, name, "Running")
	s.until(t, sandboxes, name, "Ready")
	p := s.wait(t, name, "is ready", ready)
	if p.UID == before.UID {
		t.Errorf("the pod of the suspended Sandbox is there still")
	}
	if n := s.counted(t, name); n != "1" {
		t.Errorf("the resumed Sandbox counts to %s, want 1: its memory ends with its pod", n)
	}
}

// sandboxSuspended: suspension by agent-sandbox ends the pod, and resumption makes another one.
func sandboxSuspended(t *testing.T, s *space) {
	s.sandboxed(t, sandboxes, "Sandbox", "box", blueprint(t, nil))
	s.until(t, sandboxes, "box", "Ready")
	p := s.wait(t, "box", "is ready", ready)
	for _, want := range []string{"1", "2"} {
		if n := s.counted(t, "box"); n != want {
			t.Errorf("it counts to %s, want %s", n, want)
		}
	}
	s.suspended(t, "box", p)
	s.resumed(t, "box", p)
}

// sandboxSleeps: the annotation in its pod template makes a Sandbox sleep. For agent-sandbox it stays ready, and an exec continues it with
// the memory that it had.
func sandboxSleeps(t *testing.T, s *space) {
	s.sandboxed(t, sandboxes, "Sandbox", "box", sleepy(t))
	s.until(t, sandboxes, "box", "Ready")
	for _, want := range []string{"1", "2", "3"} {
		s.asleep(t, "box")
		s.until(t, sandboxes, "box", "Ready")
		if n := s.counted(t, "box"); n != want {
			t.Errorf("after its sleep it counts to %s, want %s", n, want)
		}
	}
}

func sandboxSuspendedAsleep(t *testing.T, s *space) {
	s.sandboxed(t, sandboxes, "Sandbox", "box", sleepy(t))
	s.until(t, sandboxes, "box", "Ready")
	p := s.asleep(t, "box")
	s.suspended(t, "box", p)
	s.resumed(t, "box", p)
}

// poolSleeps: the pods of a warm pool sleep, so that they cost little, and a claim gets one of them, which an exec wakes.
func poolSleeps(t *testing.T, s *space) {
	s.sandboxed(t, templates, "SandboxTemplate", "idle", sleepy(t))
	s.sandboxed(t, warmPools, "SandboxWarmPool", "pool", map[string]any{"replicas": int64(2), "sandboxTemplateRef": map[string]any{"name": "idle"}})
	warm := map[types.UID]bool{}
	eventually(t, "the pool has two ready pods", func() bool {
		maps.DeleteFunc(warm, func(types.UID, bool) bool { return true })
		list, err := s.api.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, p := range list.Items {
			if ready(&p) {
				warm[p.UID] = true
			}
		}
		return len(warm) == 2
	})
	for _, p := range s.list(t, "") {
		s.asleep(t, p.Name)
	}
	s.sandboxed(t, claimed, "SandboxClaim", "mine", map[string]any{"warmPoolRef": map[string]any{"name": "pool"}})
	o := s.until(t, claimed, "mine", "Ready")
	name, _, err := unstructured.NestedString(o.Object, "status", "sandbox", "name")
	if err != nil || name == "" {
		t.Fatalf("%v: the claim has no Sandbox: %v", err, o.Object["status"])
	}
	p := s.wait(t, name, "is ready", ready)
	if !warm[p.UID] {
		t.Errorf("the claim has a pod that was not in the pool")
	}
	if n := s.counted(t, name); n != "1" {
		t.Errorf("the claimed Sandbox counts to %s, want 1", n)
	}
	s.asleep(t, name)
	if n := s.counted(t, name); n != "2" {
		t.Errorf("after its sleep it counts to %s, want 2", n)
	}
}
