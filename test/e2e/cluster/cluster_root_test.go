package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// programsEnv is the directory of the programs that run.sh builds; keepEnv one for
// the logs of a test that failed; apiServerEnv an API server, in the place of the
// one that run.sh builds.
const (
	programsEnv  = "LONGSHORE_CLUSTER_PROGRAMS"
	keepEnv      = "LONGSHORE_E2E_LOGS"
	apiServerEnv = "KUBE_APISERVER"
)

// The addresses of the cluster. The control plane is on the test's own network.
const (
	lan         = "lan0"
	controlIP   = "198.51.100.1"
	clusterCIDR = "10.244.0.0/16"
	serviceCIDR = "10.96.0.0/16"
	dnsIP       = "10.96.0.10"
)

// busybox is the image of most containers; the nodes find the registry of the
// tests by a catch-all mirror.
const busybox = "registry.example/busybox:1"

// cluster is a control plane and two nodes.
type cluster struct {
	dir, bin string
	pki      *pki
	admin    *rest.Config
	api      *kubernetes.Clientset
	registry *imagetest.Registry
	private  string // the registry's address with TLS
	nodes    [2]*node

	sandboxes bool // the controller of agent-sandbox runs
}

// node is a node of the cluster.
type node struct {
	*host
	agent          *nodetest.Node
	kubelet, proxy *program
	pods           string // CIDR
}

// isolated runs body on a machine of its own, or skips without the programs.
func isolated(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(os.Getenv(programsEnv), "etcd")); err != nil {
		t.Skipf("%s has no programs: make e2e-cluster builds them", programsEnv)
	}
	roottest.Run(t, body)
}

// emptyCluster is the network and the registry of a cluster.
func emptyCluster(t *testing.T) *cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-cluster-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if keep := os.Getenv(keepEnv); keep != "" && t.Failed() {
			_ = exec.Command("sh", "-c", `cp "$0"/*.log "$1"; for n in "$0"/node*; do cp $n/agent.log "$1/agent-${n##*/}.log"; done`, dir, keep).Run() //nolint:forbidigo // the test is over
		}
		clear(t, dir)
	})
	command(t, "ip", "link", "add", lan, "type", "bridge")
	command(t, "ip", "address", "add", controlIP+"/24", "dev", lan)
	command(t, "ip", "link", "set", lan, "up")
	c := &cluster{dir: dir, bin: os.Getenv(programsEnv), pki: newPKI(t, filepath.Join(dir, "pki"))}
	c.serveImages(t)
	return c
}

// newCluster brings everything up and waits until both nodes are ready and names
// are resolved.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := emptyCluster(t)
	c.controlPlane(t)
	for i := range c.nodes {
		c.nodes[i] = c.newNode(t, fmt.Sprintf("node%d", i+1), fmt.Sprintf("198.51.100.%d", 11+i))
	}
	for _, n := range c.nodes {
		n.pods = waitFor(t, c, nodes(n.name), "has a range", func(o *corev1.Node) bool { return o.Spec.PodCIDR != "" }).Spec.PodCIDR
	}
	// The routes between nodes are the cluster's: here they are static.
	for i, n := range c.nodes {
		command(t, "ip", "route", "add", n.pods, "via", n.ip)
		c.nodes[1-i].run("ip", "route", "add", n.pods, "via", n.ip)
	}
	for _, n := range c.nodes {
		waitFor(t, c, nodes(n.name), "is ready", nodeReady)
	}
	c.dns(t)
	return c
}

// serveImages starts the registry of the tests.
func (c *cluster) serveImages(t *testing.T) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", controlIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	r, srv := imagetest.Serve(l)
	t.Cleanup(func() { _ = srv.Close() })
	c.registry = r
	c.pki.server("registry", controlIP)
	if l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", controlIP+":0"); err != nil {
		t.Fatal(err)
	}
	secure := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = secure.ServeTLS(l, c.pki.cert("registry"), c.pki.keyFile("registry")) }()
	t.Cleanup(func() { _ = secure.Close() })
	c.private = l.Addr().String()
	files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	for _, p := range []string{"peer", "subject"} {
		files = append(files, c.program(t, p, "bin/"+p))
	}
	config := ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}}
	c.registry.Push("busybox", "1", imagetest.Image{Layers: [][]imagetest.File{files}, Config: config}.Build())
	c.registry.Push("coredns", "1", imagetest.Image{
		Layers: [][]imagetest.File{{{Name: "etc/"}, c.program(t, "coredns", "coredns")}}, Config: ocispec.ImageConfig{Entrypoint: []string{"/coredns"}},
	}.Build())
}

// program is the file of an image that has one of the programs.
func (c *cluster) program(t *testing.T, name, as string) imagetest.File {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.bin, name))
	if err != nil {
		t.Fatal(err)
	}
	return imagetest.File{Name: as, Body: b, Mode: 0o755}
}

// controlPlane starts etcd, the API server, the controllers and the scheduler.
func (c *cluster) controlPlane(t *testing.T) {
	t.Helper()
	bin := func(name string) string { return filepath.Join(c.bin, name) }
	const etcd = "http://127.0.0.1:2379"
	start(t, c.dir, "etcd", func(ctx context.Context) bool { return healthy(ctx, http.DefaultClient, etcd+"/health") },
		bin("etcd"), "--data-dir="+filepath.Join(c.dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls=http://127.0.0.1:2380")

	c.pki.server("apiserver", controlIP, "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	c.pki.server("accounts") // the key that signs service accounts
	c.pki.client("kubelet-client", "apiserver", "system:masters")
	c.admin = c.pki.client("admin", "admin", "system:masters")
	api, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		t.Fatal(err)
	}
	c.api = api
	server := bin("kube-apiserver")
	if given := os.Getenv(apiServerEnv); given != "" {
		server = given
	}
	start(t, c.dir, "kube-apiserver", func(ctx context.Context) bool {
		return api.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	}, server, "--etcd-servers="+etcd, "--service-cluster-ip-range="+serviceCIDR, "--advertise-address="+controlIP, "--bind-address="+controlIP,
		"--tls-cert-file="+c.pki.cert("apiserver"), "--tls-private-key-file="+c.pki.keyFile("apiserver"), "--client-ca-file="+c.pki.cert("ca"),
		"--cert-dir="+filepath.Join(c.dir, "pki"), "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+c.pki.keyFile("accounts"), "--service-account-signing-key-file="+c.pki.keyFile("accounts"),
		"--kubelet-client-certificate="+c.pki.cert("kubelet-client"), "--kubelet-client-key="+c.pki.keyFile("kubelet-client"),
		"--kubelet-certificate-authority="+c.pki.cert("ca"), "--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true", "--v=1")

	c.pki.client("controllers", "system:kube-controller-manager")
	c.pki.client("scheduler", "system:kube-scheduler")
	c.pki.server("components", "127.0.0.1")
	ca := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // their health, on loopback
	for name, o := range map[string]struct {
		user, port string
		args       []string
	}{
		"kube-controller-manager": {"controllers", "10257", []string{
			"--allocate-node-cidrs", "--cluster-cidr=" + clusterCIDR, "--service-cluster-ip-range=" + serviceCIDR, "--root-ca-file=" + c.pki.cert("ca"),
			"--service-account-private-key-file=" + c.pki.keyFile("accounts"), "--use-service-account-credentials",
			"--cluster-signing-cert-file=" + c.pki.cert("ca"), "--cluster-signing-key-file=" + c.pki.keyFile("ca"),
		}},
		"kube-scheduler": {"scheduler", "10259", nil},
	} {
		conf := c.pki.kubeconfig(o.user)
		args := append([]string{
			bin(name), "--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf, "--bind-address=127.0.0.1",
			"--tls-cert-file=" + c.pki.cert("components"), "--tls-private-key-file=" + c.pki.keyFile("components"), "--leader-elect=false", "--v=1",
		}, o.args...)
		start(t, c.dir, name, func(ctx context.Context) bool { return healthy(ctx, ca, "https://127.0.0.1:"+o.port+"/healthz") }, args...)
	}
}

func healthy(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// parameters of the kernel that kubelet demands, below /proc/sys. They are shown
// to it as if they were so.
var parameters = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// newNode starts an agent, a kubelet and a kube-proxy on a host of their own.
func (c *cluster) newNode(t *testing.T, name, ip string) *node {
	t.Helper()
	n := &node{host: newHost(t, c.dir, name, ip)}
	n.startAgent(t, c)
	n.startKubelet(t, c)
	c.pki.client("proxy", "system:kube-proxy")
	config := filepath.Join(n.dir, "proxy.json")
	writeJSON(t, config, map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": proxyMode(), "clusterCIDR": clusterCIDR,
		"hostnameOverride": name, "clientConnection": map[string]any{"kubeconfig": c.pki.kubeconfig("proxy")},
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	})
	n.proxy = start(t, c.dir, "kube-proxy-"+name, func(ctx context.Context) bool { return n.answers(ctx, "http://127.0.0.1:10256/healthz") },
		n.inside(filepath.Join(c.bin, "kube-proxy"), "--config="+config, "--v=2")...)
	return n
}

// proxyMode is the value of LONGSHORE_PROXY_MODE, by default nftables.
func proxyMode() string {
	if m := os.Getenv("LONGSHORE_PROXY_MODE"); m != "" {
		return m
	}
	return "nftables"
}

// answers asks a server on the host.
func (h *host) answers(ctx context.Context, url string) bool {
	args := h.inside("/bin/busybox", "wget", "-q", "-O", "/dev/null", url)
	return exec.CommandContext(ctx, args[0], args[1:]...).Run() == nil
}

func (n *node) startAgent(t *testing.T, c *cluster) {
	t.Helper()
	// The binaries as the host sees them.
	bin := filepath.Join(n.dir, "bin")
	mkdir(t, bin)
	real := filepath.Join(nodetest.Bin(t), "longshore")
	script := "#!/bin/sh\nexec " + strings.Join(n.inside(real), " ") + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "longshore"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	// The tests' registry is everybody's mirror, and has two addresses of its own.
	certs := filepath.Join(n.dir, "certs.d")
	for name, text := range map[string]string{
		"_default":      fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", "http://"+c.registry.Host),
		c.registry.Host: fmt.Sprintf("server = %q\n", "http://"+c.registry.Host),
		c.private:       fmt.Sprintf("server = %q\nca = %q\n", "https://"+c.private, c.pki.cert("ca")),
	} {
		mkdir(t, filepath.Join(certs, name))
		write(t, filepath.Join(certs, name, "hosts.toml"), text)
	}
	n.agent = nodetest.Start(t, nodetest.Options{Dir: n.dir, Bin: bin, Config: fmt.Sprintf(
		"[images]\nregistry_config = [%q]\n[network]\nmode = \"builtin\"\npod_cidr = \"from-kubelet\"\nno_masquerade = [%q]\n", certs, clusterCIDR)})
}

func (n *node) startKubelet(t *testing.T, c *cluster) {
	t.Helper()
	c.pki.client(n.name, "system:node:"+n.name, "system:nodes")
	c.pki.server(n.name+"-serves", n.ip, n.name)
	resolv := filepath.Join(n.dir, "resolv.conf")
	write(t, resolv, "nameserver "+controlIP+"\n") // it refuses
	config := filepath.Join(n.dir, "kubelet.json")
	swap, show := map[string]any{}, ""
	if unified() { // kubelet gives nobody swap elsewhere, nor as a process of the root
		swap["swapBehavior"], show = "LimitedSwap", "echo $$ >/sys/fs/cgroup"+cgroup(t)+"/cgroup.procs; "
	}
	writeJSON(t, config, map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + filepath.Join(n.agent.State, "cri.sock"),
		"podLogsDir":               filepath.Join(n.dir, "pods"),
		"staticPodPath":            n.manifests(),
		"fileCheckFrequency":       "1s",
		"syncFrequency":            "10s", // of volumes' contents
		"volumePluginDir":          filepath.Join(n.dir, "plugins"),
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               cgroup(t),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"memorySwap":               swap,
		"protectKernelDefaults":    true,
		"clusterDNS":               []string{dnsIP},
		"clusterDomain":            "cluster.local",
		"resolvConf":               resolv,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false}, "x509": map[string]any{"clientCAFile": c.pki.cert("ca")},
		},
		"authorization":     map[string]any{"mode": "AlwaysAllow"},
		"tlsCertFile":       c.pki.cert(n.name + "-serves"),
		"tlsPrivateKeyFile": c.pki.keyFile(n.name + "-serves"),
		// The second node takes its figures from the agent. With EventedPLEG, which takes
		// its events too, kubelet 1.37.2 starts finished init containers again without end.
		"featureGates": map[string]bool{"PodAndContainerStatsFromCRI": n.name == "node2"},
		// The machine's disk and memory are others' business.
		"evictionHard":                map[string]string{"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"serializeImagePulls":         false,
		"maxPods":                     110,
	})
	mkdir(t, n.manifests())
	// A user namespace may not mount a proc of its own where that of the host is
	// covered, so the parameters are shown to kubelet alone.
	show += "mount --make-private /proc; "
	for name, value := range parameters {
		file := filepath.Join(n.dir, filepath.Base(name))
		write(t, file, value+"\n")
		show += fmt.Sprintf("mount --bind %s /proc/sys/%s; ", file, name)
	}
	n.kubelet = start(t, c.dir, "kubelet-"+n.name, func(ctx context.Context) bool { return n.answers(ctx, "http://127.0.0.1:10248/healthz") },
		n.inside("unshare", "--mount", "--propagation", "unchanged", "sh", "-ec", show+`exec "$0" "$@"`,
			filepath.Join(c.bin, "kubelet"), "--config="+config, "--kubeconfig="+c.pki.kubeconfig(n.name), "--root-dir="+filepath.Join(n.dir, "kubelet"),
			"--cert-dir="+filepath.Join(n.dir, "pki"), "--hostname-override="+n.name, "--node-ip="+n.ip, "--v=2")...)
}

func (n *node) manifests() string { return filepath.Join(n.dir, "manifests") }

// cgroup makes the cgroup that kubelet demands, in every hierarchy.
func cgroup(t *testing.T) string {
	t.Helper()
	name := roottest.Cgroup(t)
	tops, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	if unified() {
		tops = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, top := range tops {
		mkdir(t, filepath.Join(filepath.Dir(top), name))
	}
	return name
}

// unified says whether this machine has cgroup v2 alone.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

func writeJSON(t *testing.T, path string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(b))
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// dns runs CoreDNS as a Deployment behind the Service that kubelet tells pods of.
func (c *cluster) dns(t *testing.T) {
	t.Helper()
	for _, o := range dnsRoles() {
		c.create(t, "", o)
	}
	for _, o := range dnsObjects() {
		c.create(t, metav1.NamespaceSystem, o)
	}
	waitFor(t, c, deployments(metav1.NamespaceSystem, "coredns"), "is available", available(1))
}
