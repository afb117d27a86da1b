package cluster

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

func rightsChecks() []check {
	return []check{
		{"users and groups", usersAndGroups},
		{"runAsNonRoot refuses root", nonRoot},
		{"capabilities", capabilities},
		{"no new privileges", noNewPrivs},
		{"seccomp", seccomp},
		{"privileged", privileged},
		{"kernel parameters", sysctls},
		{"a user namespace", userNamespace},
		{"the processes of a pod are shared", sharedProcesses},
		{"host PID and IPC", hostNamespaces},
		{"a RuntimeClass", runtimeClass},
		{"a RuntimeClass that no node has", runtimeClassMissing},
		{"pull policies", pullPolicies},
		{"a pull secret", pullSecret},
		{"an image by its digest", byDigest},
		{"an image's volumes and user", imageConfig},
		{"a static pod", staticPod},
	}
}

// secured gives a pod's first container a security context.
func secured(p *corev1.Pod, c corev1.SecurityContext) *corev1.Pod {
	p.Spec.Containers[0].SecurityContext = &c
	return p
}

func usersAndGroups(t *testing.T, s *space) {
	p := secured(once("user", "id -u; id -g; id -G"), corev1.SecurityContext{RunAsUser: ptr.To(int64(1001)), RunAsGroup: ptr.To(int64(2002))})
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1)), SupplementalGroups: []int64{3003}, SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicyStrict)}
	if out := s.succeeds(t, p); out != "1001\n2002\n2002 3003\n" {
		t.Errorf("%q", out)
	}
	if u := state(s.ended(t, "user"), "main").User; u == nil || u.Linux == nil || u.Linux.UID != 1001 || u.Linux.GID != 2002 {
		t.Errorf("the status says %+v", u)
	}
}

func nonRoot(t *testing.T, s *space) {
	s.create(t, s.ns, secured(once("root", "true"), corev1.SecurityContext{RunAsNonRoot: ptr.To(true)}))
	s.wait(t, "root", "is refused", waits("main", "CreateContainerConfigError"))
	s.succeeds(t, secured(once("other", "true"), corev1.SecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To(int64(7))}))
}

func capabilities(t *testing.T, s *space) {
	p := secured(once("caps", "grep CapEff /proc/self/status; mkdir /m && mount -t tmpfs tmpfs /m && echo mounted; chown 1 /m 2>/dev/null || busybox chown 1 /m 2>/dev/null || echo no chown"),
		corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"SYS_ADMIN"}}})
	if out := s.succeeds(t, p); out != "CapEff:\t0000000000200000\nmounted\nno chown\n" {
		t.Errorf("%q", out)
	}
}

func noNewPrivs(t *testing.T, s *space) {
	p := secured(once("nnp", "grep NoNewPrivs /proc/self/status"), corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)})
	if out := s.succeeds(t, p); out != "NoNewPrivs:\t1\n" {
		t.Errorf("%q", out)
	}
}

func seccomp(t *testing.T, s *space) {
	for _, c := range []struct {
		name, want string
		kind       corev1.SeccompProfileType
	}{{"default", "2", corev1.SeccompProfileTypeRuntimeDefault}, {"unconfined", "0", corev1.SeccompProfileTypeUnconfined}} {
		p := secured(once(c.name, "grep Seccomp: /proc/self/status"), corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: c.kind}})
		if out := s.succeeds(t, p); out != "Seccomp:\t"+c.want+"\n" {
			t.Errorf("%s: %q", c.name, out)
		}
	}
}

func privileged(t *testing.T, s *space) {
	p := secured(once("privileged", "mkdir /m && mount -t tmpfs tmpfs /m && echo mounted; [ -e /dev/kmsg ] && echo devices"), corev1.SecurityContext{Privileged: ptr.To(true)})
	if out := s.succeeds(t, p); out != "mounted\ndevices\n" {
		t.Errorf("%q", out)
	}
}

func sysctls(t *testing.T, s *space) {
	p := once("sysctl", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/kernel/shm_rmid_forced")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "80"}, {Name: "kernel.shm_rmid_forced", Value: "1"}}}
	if out := s.succeeds(t, p); out != "80\n1\n" {
		t.Errorf("%q", out)
	}
}

func userNamespace(t *testing.T, s *space) {
	p := shared(once("userns", "cat /proc/self/uid_map; id -u; touch /share/x; stat -c %u /share/x"))
	p.Spec.HostUsers = ptr.To(false)
	if !nodetest.KernelFrom(6, 3) {
		p.Spec.AutomountServiceAccountToken = ptr.To(false) // older kernels cannot map the ids of its tmpfs
	}
	out := s.succeeds(t, p)
	var inside, host, length, uid, owner int
	if _, err := fmt.Sscan(out, &inside, &host, &length, &uid, &owner); err != nil || inside != 0 || host < 65536 || length != 65536 || uid != 0 || owner != 0 {
		t.Errorf("%q: %v", out, err)
	}
}

func sharedProcesses(t *testing.T, s *space) {
	p := pod("shared", sleeper("main"), shell("other", "exec sleep 98765"))
	p.Spec.ShareProcessNamespace = ptr.To(true)
	s.run(t, p)
	eventually(t, "one container sees the other's process", func() bool { return strings.Contains(s.sh(t, "shared", "ps"), "sleep 98765") })
}

func hostNamespaces(t *testing.T, s *space) {
	p := on(s.nodes[0], pod("host", sleeper("main")))
	p.Spec.HostPID, p.Spec.HostIPC = true, true
	s.run(t, p)
	for _, ns := range []string{"pid", "ipc"} {
		want, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.sh(t, "host", "readlink /proc/self/ns/"+ns); got != want+"\n" {
			t.Errorf("%s: %q, want %s", ns, got, want)
		}
	}
}

func (s *space) class(t *testing.T, handler string) {
	t.Helper()
	s.create(t, "", &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Handler: handler})
}

func runtimeClass(t *testing.T, s *space) {
	s.class(t, "native")
	p := once("class", "echo by native")
	p.Spec.RuntimeClassName = &s.ns
	if out := s.succeeds(t, p); out != "by native\n" {
		t.Errorf("%q", out)
	}
	n := waitFor(t, s.cluster, nodes("node1"), "is there", nodeReady)
	if !slices.ContainsFunc(n.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == "native" }) {
		t.Errorf("the node's handlers are %+v", n.Status.RuntimeHandlers)
	}
}

func runtimeClassMissing(t *testing.T, s *space) {
	s.class(t, "no-such-handler")
	p := pod("class", sleeper("main"))
	p.Spec.RuntimeClassName = &s.ns
	s.create(t, s.ns, p)
	eventually(t, "kubelet says so", func() bool {
		e := s.events(s.ns, "class")
		return strings.Contains(e, "FailedCreatePodSandBox") && strings.Contains(e, "no-such-handler")
	})
}

// push makes an image of its own for a check.
func (s *space) push(t *testing.T, name string, config ocispec.ImageConfig, more ...imagetest.File) imagetest.Built {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", "sh", "cat", "echo", "id", "sleep", "ls")
	if err != nil {
		t.Fatal(err)
	}
	config.Env = []string{"PATH=/bin"}
	files = append(files, imagetest.File{Name: "etc/of", Body: []byte(s.ns + "/" + name)})
	b := imagetest.Image{Layers: [][]imagetest.File{append(files, more...)}, Config: config}.Build()
	s.registry.Push(name, "1", b)
	return b
}

// withImage gives a pod's first container another image.
func withImage(p *corev1.Pod, image string, policy corev1.PullPolicy) *corev1.Pod {
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
	return p
}

func pullPolicies(t *testing.T, s *space) {
	s.push(t, s.ns, ocispec.ImageConfig{})
	image := "registry.example/" + s.ns + ":1"
	s.create(t, s.ns, on(s.nodes[0], withImage(pod("never", sleeper("main")), image, corev1.PullNever)))
	s.wait(t, "never", "is refused", waits("main", "ErrImageNeverPull"))
	s.succeeds(t, on(s.nodes[0], withImage(once("always", "true"), image, corev1.PullAlways)))
	s.wait(t, "never", "has its image", ready)
	// Only Always sees the tag's new image.
	s.push(t, s.ns, ocispec.ImageConfig{}, imagetest.File{Name: "etc/new", Body: []byte("new\n")})
	s.succeeds(t, on(s.nodes[0], withImage(once("present", "[ ! -f /etc/new ]"), image, corev1.PullIfNotPresent)))
	if out := s.succeeds(t, on(s.nodes[0], withImage(once("anew", "cat /etc/new"), image, corev1.PullAlways))); out != "new\n" {
		t.Errorf("%q", out)
	}
}

func pullSecret(t *testing.T, s *space) {
	name := "private-" + s.ns
	s.push(t, name, ocispec.ImageConfig{})
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:word"))
	s.registry.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/private-") && r.Header.Get("Authorization") != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="tests"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
	host := s.private
	s.create(t, s.ns, on(s.nodes[1], withImage(pod("without", sleeper("main")), host+"/"+name+":1", corev1.PullAlways)))
	s.wait(t, "without", "is refused", func(p *corev1.Pod) bool {
		return waits("main", "ErrImagePull")(p) || waits("main", "ImagePullBackOff")(p)
	})
	s.create(t, s.ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson, StringData: map[string]string{
		corev1.DockerConfigJsonKey: fmt.Sprintf(`{"auths":{%q:{"username":"user","password":"word"}}}`, host),
	}})
	p := on(s.nodes[1], withImage(once("with", "cat /etc/of"), host+"/"+name+":1", corev1.PullAlways))
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	if out := s.succeeds(t, p); out != s.ns+"/"+name {
		t.Errorf("%q", out)
	}
}

func byDigest(t *testing.T, s *space) {
	b := s.push(t, s.ns, ocispec.ImageConfig{})
	image := "registry.example/" + s.ns + "@" + b.Manifest.Digest.String()
	s.succeeds(t, withImage(once("digest", "cat /etc/of"), image, corev1.PullIfNotPresent))
	if e := state(s.ended(t, "digest"), "main"); !strings.HasSuffix(e.ImageID, b.Manifest.Digest.String()) {
		t.Errorf("its image is %s, want %s", e.ImageID, b.Manifest.Digest)
	}
}

func imageConfig(t *testing.T, s *space) {
	s.push(t, s.ns, ocispec.ImageConfig{User: "33:33", WorkingDir: "/data", Volumes: map[string]struct{}{"/data": {}}},
		imagetest.File{Name: "data/", UID: 33, GID: 33}, imagetest.File{Name: "data/x", Body: []byte("of the image\n"), UID: 33, GID: 33})
	p := secured(withImage(once("config", "id -u; cat x; echo y >y && cat y"), "registry.example/"+s.ns+":1", corev1.PullIfNotPresent), corev1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)})
	if out := s.succeeds(t, p); out != "33\nof the image\ny\n" {
		t.Errorf("%q", out)
	}
}

func staticPod(t *testing.T, s *space) {
	n := s.nodes[1]
	p := pod("static", sleeper("main"))
	p.APIVersion, p.Kind, p.Namespace = "v1", "Pod", s.ns
	file := filepath.Join(n.manifests(), s.ns+".json")
	writeJSON(t, file, p)
	t.Cleanup(func() { _ = os.Remove(file) })
	before := s.wait(t, "static-node2", "is ready", ready)
	// The API's mirror may go, the pod stays.
	remove(t, s.cluster, pods(s.ns, "static-node2"))
	after := s.wait(t, "static-node2", "is shown again", func(p *corev1.Pod) bool { return p.UID != before.UID && ready(p) })
	if state(after, "main").ContainerID != state(before, "main").ContainerID {
		t.Error("it was started anew")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	gone(t, s.cluster, pods(s.ns, "static-node2"))
}
