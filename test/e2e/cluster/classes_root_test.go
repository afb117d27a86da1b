package cluster

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
)

// contrib has the examples that users copy.
const contrib = "../../../contrib/grants/"

// The images of programs with granted rights only: one web server, as a native program and as WebAssembly, and the
// example of contrib.
const (
	nativeServer = "registry.example/granted:1"
	moduleServer = "registry.example/module:1"
)

// classChecks are of pods with a RuntimeClass of contrib/grants, which decides how their programs are
// confined.
func classChecks() []check {
	return []check{
		{"the nodes tell the handlers of the classes", handlersTold},
		{"a module serves beside an ordinary sidecar", moduleServes},
		{"modules of both nodes are one Service", modulesOnBothNodes},
		{"a module without a listener", moduleWithout},
		{"a granted program serves", grantedServes},
		{"a granted program gets a Secret", grantedSecret},
		{"a granted program without a listener", grantedWithout},
		{"a document that cannot be granted", documentRefused},
		{"the class decides of what has no document", classDecides},
		{"the example of contrib", exampleServes},
	}
}

// serveGranted gives the registry the images.
func (c *cluster) serveGranted(t *testing.T) {
	t.Helper()
	for name, program := range map[string]string{"granted:1": "granted", "greeter:latest": "greeter"} {
		repo, tag, _ := strings.Cut(name, ":")
		c.registry.Push(repo, tag, imagetest.Image{
			Layers: [][]imagetest.File{{c.program(t, program, "program")}}, Config: ocispec.ImageConfig{Entrypoint: []string{"/program"}},
		}.Build())
	}
	c.registry.Push("module", "1", imagetest.Wasm{
		Module: c.program(t, "wasip1.wasm", "").Body, LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
		Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
	}.Build())
}

// example are the objects of a file of contrib.
func example(t *testing.T, file string) (all []runtime.Object) {
	t.Helper()
	for _, text := range bytes.Split([]byte(read(t, filepath.Join(contrib, file))), []byte("\n---\n")) {
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, o)
	}
	return all
}

// classes makes the RuntimeClasses, as an operator does once for a cluster.
func (c *cluster) classes(t *testing.T) {
	t.Helper()
	for _, o := range example(t, "runtimeclasses.yaml") {
		c.create(t, "", o)
	}
}

// granted returns a pod of a class, with a document for its container main.
func granted(name, class, image, document string) *corev1.Pod {
	p := pod(name, corev1.Container{
		Name: "main", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	})
	p.Annotations = map[string]string{"longshore.grants/main": document}
	p.Spec.RuntimeClassName = &class
	return p
}

// asked has kubelet ask a pod by HTTP whether it has started, is ready and lives.
func asked(p *corev1.Pod) *corev1.Pod {
	h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/hello", Port: intstr.FromString("web")}}
	c := &p.Spec.Containers[0]
	c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = probed(h, 600), probed(h, 3), probed(h, 30)
	return p
}

// dies makes a pod run once only.
func dies(p *corev1.Pod) *corev1.Pod {
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// deleted deletes a pod and waits until the API has it no more. Nothing of it runs then.
func (s *space) deleted(t *testing.T, name string) {
	t.Helper()
	remove(t, s.cluster, pods(s.ns, name))
	gone(t, s.cluster, pods(s.ns, name))
	for _, n := range s.nodes {
		r, err := n.agent.CRI.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: s.labels(name), State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
		if err != nil || len(r.GetContainers()) > 0 {
			t.Errorf("%s is gone, and on %s run %v, %v", name, n.name, r.GetContainers(), err)
		}
	}
}

// collected waits until the nodes have nothing of a pod that was deleted: kubelet collects once a minute.
func (s *space) collected(t *testing.T, name string) {
	t.Helper()
	for _, n := range s.nodes {
		eventually(t, "kubelet has collected what "+name+" was on "+n.name, func() bool {
			r, err := n.agent.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: s.labels(name)}})
			return err == nil && len(r.GetItems()) == 0
		})
	}
}

// labels returns kubelet's labels of a pod.
func (s *space) labels(pod string) map[string]string {
	return map[string]string{"io.kubernetes.pod.namespace": s.ns, "io.kubernetes.pod.name": pod}
}

func handlersTold(t *testing.T, s *space) {
	for _, n := range s.nodes {
		told := waitFor(t, s.cluster, nodes(n.name), "is ready", nodeReady).Status.RuntimeHandlers
		for _, want := range []string{"grant", "wasm", "wasi"} {
			i := slices.IndexFunc(told, func(h corev1.NodeRuntimeHandler) bool { return h.Name == want })
			if i < 0 || told[i].Features == nil || told[i].Features.RecursiveReadOnlyMounts == nil || told[i].Features.UserNamespaces == nil {
				t.Errorf("%s tells %+v", n.name, told)
			}
		}
	}
}

// moduleServes: the sidecar is an init container that restarts, so it begins before the module and ends after it. The
// module's probes pass, a pod of the other node reaches it by a Service, and the agent asks for its end by its grant.
func moduleServes(t *testing.T, s *space) {
	side := sleeper("side")
	side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p := asked(granted("server", "wasm", moduleServer, "{log: !container_log , listen: !listen {tcp: 8080}, shutdown: !shutdown , greeting: hello from a module}"))
	p.Spec.InitContainers = []corev1.Container{side}
	p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(600))
	p.Finalizers = []string{"example.org/looks"}
	s.create(t, s.ns, on(s.nodes[0], p))
	s.run(t, on(s.nodes[1], pod("client", peer())))
	before := s.wait(t, "server", "is ready", ready)
	s.wantAnswer(t, "client", web(s.expose(t).Spec.ClusterIP, 80), "hello from a module")
	if out, err := s.try(t.Context(), "server", "side", "wget", "-qO-", "http://127.0.0.1:8080/"); err != nil || out != "hello from a module" {
		t.Errorf("the sidecar gets %q, %v", out, err)
	}
	if out, err := s.try(t.Context(), "server", "main", "sh"); err == nil || !strings.Contains(err.Error(), "holds only its descriptors") {
		t.Errorf("exec: %q, %v", out, err)
	}
	if got := s.said(t, "server", "main", "serving\n"); !strings.Contains(got, "environment []") || strings.Contains(got, "not given") {
		t.Errorf("the module says %q", got)
	}
	if e := state(before, "main"); e.RestartCount != 0 || !strings.HasPrefix(e.ContainerID, "longshore://") || state(before, "side").State.Running == nil {
		t.Errorf("%+v", before.Status)
	}
	remove(t, s.cluster, pods(s.ns, "server"))
	after := s.wait(t, "server", "is over", func(p *corev1.Pod) bool {
		return state(p, "main").State.Terminated != nil && state(p, "side").State.Terminated != nil
	})
	if x := state(after, "main").State.Terminated; x.ExitCode != 7 {
		t.Errorf("it was asked to stop, and ended with %+v", x)
	}
	patch(t, s.cluster, pods(s.ns, "server"), `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.org/looks"]}}`)
	gone(t, s.cluster, pods(s.ns, "server"))
}

func modulesOnBothNodes(t *testing.T, s *space) {
	for i, name := range []string{"a", "b"} {
		document := fmt.Sprintf("{log: !container_log , listen: !listen {tcp: 8080}, greeting: %s}", name)
		s.create(t, s.ns, on(s.nodes[i], labelled(asked(granted(name, "wasm", moduleServer, document)), "app", "server")))
	}
	s.run(t, pod("client", peer()))
	url := web(s.expose(t).Spec.ClusterIP, 80)
	s.wait(t, "a", "is ready", ready)
	s.wait(t, "b", "is ready", ready)
	answered := func(want ...string) func() bool {
		return func() bool {
			out, err := s.try(t.Context(), "client", "main", "peer", "ask", "-n", "40", url)
			return err == nil && slices.Equal(names(out), want)
		}
	}
	eventually(t, "both modules answer and none fails", answered("a", "b"))
	s.deleted(t, "b")
	eventually(t, "only a answers", answered("a"))
	s.collected(t, "b")
}

// failed runs a pod with a program that must fail for want of a grant, and returns the API's message of its end.
func (s *space) failed(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	s.create(t, s.ns, dies(p))
	e := s.ended(t, p.Name)
	x := state(e, "main").State.Terminated
	if e.Status.Phase != corev1.PodFailed || x == nil || x.ExitCode != 3 || x.Reason != "Error" {
		t.Fatalf("%s is %s: %+v", p.Name, e.Status.Phase, x)
	}
	s.deleted(t, p.Name)
	return x.Message
}

// moduleWithout: the program that serves above.
func moduleWithout(t *testing.T, s *space) {
	if got := s.failed(t, granted("nothing", "wasm", moduleServer, "{log: !container_log }")); !strings.Contains(got, "failed: open /fd/5: ") || strings.Contains(got, "not given") {
		t.Errorf("its status says %q", got)
	}
}

// grantedServes: the program sees neither the API's variables nor the token of the pod's account.
func grantedServes(t *testing.T, s *space) {
	p := asked(granted("server", "grant", nativeServer, "{log: !container_log , data: !mount /share, listen: !listen {tcp: 8080}, greeting: hello from a grant}"))
	dir := s.hostDir(t)
	p.Spec.Volumes = []corev1.Volume{{Name: "share", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "share", MountPath: "/share"}}
	s.create(t, s.ns, on(s.nodes[1], p))
	s.run(t, on(s.nodes[0], pod("client", peer())))
	if e := state(s.wait(t, "server", "is ready", ready), "main"); e.RestartCount != 0 {
		t.Errorf("%+v", e)
	}
	url := web(s.expose(t).Spec.ClusterIP, 80)
	for path, want := range map[string]string{
		"hello": "hello from a grant", "environment": "LISTEN_PID=1 LISTEN_FDS=4 LISTEN_FDNAMES=argdata:log:data:listen", "write?text=written": "<nil>",
	} {
		s.wantAnswer(t, "client", url+path, want)
	}
	if got := read(t, filepath.Join(dir, "written")); got != "written" {
		t.Errorf("its mount has %q", got)
	}
	if got := s.said(t, "server", "main", "\n"); got != "logged by a grant\n" {
		t.Errorf("its log is %q", got)
	}
	if out, err := s.try(t.Context(), "server", "main", "/program"); err == nil || !strings.Contains(err.Error(), "holds only its descriptors") {
		t.Errorf("exec: %q, %v", out, err)
	}
	s.deleted(t, "server")
	s.collected(t, "server")
}

func grantedSecret(t *testing.T, s *space) {
	s.create(t, s.ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "credentials"}, StringData: map[string]string{"password": "open sesame"}})
	p := dies(granted("secret", "grant", nativeServer, "{secret: !secret password}"))
	p.Spec.Volumes = []corev1.Volume{{Name: "credentials", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "credentials"}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "credentials", MountPath: "/etc/credentials", ReadOnly: true}}
	out := s.succeeds(t, p)
	if first, then, _ := strings.Cut(out, "\n"); first != `secret "open sesame" <nil>` || !strings.HasPrefix(then, "write: ") || strings.Contains(then, "<nil>") {
		t.Errorf("%q", out)
	}
}

// grantedWithout: the program that serves above gets an error from the kernel, with a document that grants too little and without one.
func grantedWithout(t *testing.T, s *space) {
	none := granted("none", "grant", nativeServer, "")
	none.Annotations = nil
	for _, p := range []*corev1.Pod{granted("little", "grant", nativeServer, "{log: !container_log }"), none} {
		if got := s.failed(t, p); !strings.Contains(got, "listen tcp :8080: ") || !strings.Contains(got, "operation not permitted") {
			t.Errorf("the status of %s says %q", p.Name, got)
		}
	}
}

// classDecides: a program with a document is granted in every class. Without one a shell sees no root in the class
// grant, and an ordinary one in the class wasm; there a module holds nothing, not even a log.
func classDecides(t *testing.T, s *space) {
	for class, held := range map[string]bool{"grant": true, "wasm": false} {
		p := once("shell-"+class, "echo /*")
		p.Spec.RuntimeClassName = &class
		if out := s.succeeds(t, p); held && out != "/*\n" || !held && !strings.Contains(out, "/bin ") {
			t.Errorf("in the class %s a shell sees %q", class, out)
		}
		p = granted("module-"+class, class, moduleServer, "")
		p.Annotations = nil
		if got := s.failed(t, p); got != "" {
			t.Errorf("in the class %s a module says %q", class, got)
		}
	}
}

// documentRefused: a mount that the pod does not have. Its status says where in the document, and nothing has run.
func documentRefused(t *testing.T, s *space) {
	s.create(t, s.ns, granted("refused", "grant", nativeServer, "{data: !mount /data}"))
	e := state(s.wait(t, "refused", "is refused", waits("main", "CreateContainerError")), "main")
	if m := e.State.Waiting.Message; !strings.Contains(m, `line 1, column 8: Unknown volume mount "/data"`) || e.RestartCount != 0 || e.ContainerID != "" {
		t.Errorf("%+v, %q", e, m)
	}
	s.deleted(t, "refused")
}

// exampleServes: pod.yaml, applied as by kubectl, works with the class grant and without a class. Both pods hold the
// grants of its annotation.
func exampleServes(t *testing.T, s *space) {
	s.run(t, pod("client", peer()))
	for _, class := range []*string{ptr.To("grant"), nil} {
		p, ok := example(t, "pod.yaml")[0].(*corev1.Pod)
		if !ok {
			t.Fatal("pod.yaml has no pod")
		}
		p.Spec.RuntimeClassName = class
		ip := s.run(t, p).Status.PodIP
		s.wantAnswer(t, "client", web(ip, 8080), "hello")
		if got := s.said(t, p.Name, p.Name, "\n"); got != "serving\n" {
			t.Errorf("its log is %q", got)
		}
		s.deleted(t, p.Name)
	}
}
