package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestKubeadm runs kubeadm init and kubeadm reset. The control plane runs in pods of the agent.
func TestKubeadm(t *testing.T) {
	if _, err := os.Stat(filepath.Join(os.Getenv(programsEnv), "kubeadm")); err != nil {
		t.Skipf("%s has no kubeadm: make e2e-cluster builds it", programsEnv)
	}
	isolated(t, kubeadm)
}

// kubernetesVersion is the version of the programs. Built from a module, they do not know it.
const kubernetesVersion = "v1.37.2"

func kubeadm(t *testing.T) {
	c := emptyCluster(t)
	bin := func(name string) string { return filepath.Join(c.bin, name) }
	c.kubeadmImages(t)
	n := &node{host: newHost(t, c.dir, "node1", "198.51.100.11")}
	// kubeadm writes there and refuses a directory with files.
	n.run("sh", "-ec", "mkdir -p /etc/kubernetes && mount -t tmpfs tmpfs /etc/kubernetes && mkdir /etc/kubernetes/manifests")
	n.startAgent(t, c)
	// CoreDNS does not start without a name server. This one refuses.
	resolv := filepath.Join(n.dir, "resolv.conf.kubelet")
	write(t, resolv, "nameserver "+controlIP+"\n")
	config := filepath.Join(n.dir, "kubeadm.yaml")
	socket := "unix://" + filepath.Join(n.agent.State, "cri.sock")
	write(t, config, `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: `+n.ip+`}
nodeRegistration:
  name: node1
  criSocket: `+socket+`
  taints: []
  ignorePreflightErrors: [all]
  kubeletExtraArgs: [{name: node-ip, value: `+n.ip+`}]
timeouts: {kubeletHealthCheck: 20m, controlPlaneComponentHealthCheck: 20m, kubernetesAPICall: 20m, etcdAPICall: 20m, tlsBootstrap: 20m} # an emulated machine is slow
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: `+kubernetesVersion+`
networking: {podSubnet: `+clusterCIDR+`, serviceSubnet: `+serviceCIDR+`}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
resolvConf: `+resolv+`
cgroupDriver: cgroupfs
cgroupRoot: `+cgroup(t)+`
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: `+socket+`
podLogsDir: `+filepath.Join(n.dir, "pods")+`
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`)
	// The kubelet starts when kubeadm has written its configuration.
	n.kubelet = &program{t: t, log: filepath.Join(c.dir, "kubelet-node1.log"), args: n.inside("sh", "-ec", `
until [ -s /var/lib/kubelet/config.yaml ] && [ -e /var/lib/kubelet/kubeadm-flags.env ]; do sleep 0.2; done
. /var/lib/kubelet/kubeadm-flags.env
exec "$0" --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
	--config=/var/lib/kubelet/config.yaml --v=2 $KUBELET_KUBEADM_ARGS`, bin("kubelet"))}
	log, err := os.Create(n.kubelet.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n.kubelet.cmd = exec.Command(n.kubelet.args[0], n.kubelet.args[1:]...) //nolint:forbidigo // it ends with the test
	n.kubelet.cmd.Stdout, n.kubelet.cmd.Stderr = log, log
	n.kubelet.done = make(chan struct{})
	n.kubelet.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.kubelet.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = n.kubelet.cmd.Wait(); close(n.kubelet.done) }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the kubelet complains:\n%s", n.kubelet.tail(30))
		}
		n.kubelet.down(syscall.SIGKILL)
	})
	path := "PATH=" + c.bin + ":" + os.Getenv("PATH")
	out, err := exec.CommandContext(t.Context(), n.inside("env", path)[0], n.inside("env", path, bin("kubeadm"), "init", "--config="+config, "--v=1")[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "initialized successfully") {
		t.Fatalf("kubeadm init: %v\n%s", err, out)
	}
	for _, warning := range []string{"CRI", "cri", "pause"} { // none is about the runtime
		for line := range strings.SplitSeq(string(out), "\n") {
			if strings.Contains(line, "[WARNING") && strings.Contains(line, warning) {
				t.Errorf("kubeadm warns: %s", line)
			}
		}
	}
	admin := filepath.Join(c.dir, "admin.conf")
	write(t, admin, n.run("cat", "/etc/kubernetes/admin.conf"))
	if c.admin, err = clientcmd.BuildConfigFromFlags("", admin); err != nil {
		t.Fatal(err)
	}
	command(t, "ip", "route", "add", "10.96.0.0/16", "via", n.ip)
	if c.api, err = kubernetes.NewForConfig(c.admin); err != nil {
		t.Fatal(err)
	}
	c.nodes[0] = n
	waitFor(t, c, nodes("node1"), "is ready", nodeReady)
	waitFor(t, c, deployments("kube-system", "coredns"), "is available", available(2))
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		waitFor(t, c, pods("kube-system", name+"-node1"), "is ready", ready)
	}
	// A name of a Service needs kube-proxy, CoreDNS and the pod's resolv.conf.
	c.create(t, "default", pod("client", shell("main", "until nslookup kubernetes.default.svc.cluster.local; do sleep 1; done; exec sleep 1000000")))
	waitFor(t, c, pods("default", "client"), "is ready", ready)
	n.kubelet.down(syscall.SIGTERM)
	reset := n.inside("env", path, bin("kubeadm"), "reset", "--force", "--cri-socket="+socket)
	if out, err := exec.CommandContext(t.Context(), reset[0], reset[1:]...).CombinedOutput(); err != nil {
		t.Errorf("kubeadm reset: %v\n%s", err, out)
	}
	if left, err := n.agent.CLI("sandboxes", "--json"); err != nil || strings.ContainsRune(left, '{') {
		t.Errorf("sandboxes after the reset: %v\n%s", err, left)
	}
}

// kubeadmImages serves the images that kubeadm pulls, made of the programs.
func (c *cluster) kubeadmImages(t *testing.T) {
	t.Helper()
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "etcd"} {
		tag := kubernetesVersion
		files := []imagetest.File{c.program(t, name, "usr/local/bin/"+name)}
		switch name {
		case "etcd":
			tag = "3.7.0-0"
		case "kube-proxy":
			files = append(files, withLibraries(t, "nft")...)
		}
		c.registry.Push(name, tag, imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: env}}.Build())
	}
	c.registry.Push("coredns/coredns", "v1.14.6", imagetest.Image{
		Layers: [][]imagetest.File{{c.program(t, "coredns", "coredns")}}, Config: ocispec.ImageConfig{Entrypoint: []string{"/coredns"}, WorkingDir: "/"},
	}.Build())
	c.registry.Push("pause", "3.10.2", imagetest.Image{Layers: [][]imagetest.File{{c.program(t, "peer", "pause")}}}.Build())
}
