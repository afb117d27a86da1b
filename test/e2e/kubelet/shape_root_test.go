package kubelet

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/longshore/longshore/test/nodetest"
)

func volumes(t *testing.T, n *node) {
	dir := filepath.Join(n.Dir, "volumes")
	mkdir(t, filepath.Join(dir, "sub"))
	write(t, filepath.Join(dir, "config"), "from a file\n")
	write(t, filepath.Join(dir, "sub/file"), "below\n")
	p := once("volumes", `set -e
echo disk >/disk/file; cat /other/disk/file 2>/dev/null || true
grep ' /memory tmpfs' /proc/mounts; df -m /memory | tail -n 1
echo memory >/memory/file
cat /etc/config; cat /host/config; cat /subpath/file; echo to the host >/host/written
(echo no >/readonly/no) 2>&1 || echo read-only
grep -c . /image/bin/busybox >/dev/null && echo image
(echo no >/image/no) 2>&1 || echo image read-only`)
	memory := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("8Mi"))}}
	for name, v := range map[string]corev1.VolumeSource{
		"disk": emptyDir(), "memory": memory, "host": hostPath(dir),
		"image": {Image: &corev1.ImageVolumeSource{Reference: busybox, PullPolicy: corev1.PullIfNotPresent}},
	} {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: v})
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
		{Name: "disk", MountPath: "/disk"}, {Name: "memory", MountPath: "/memory"}, {Name: "host", MountPath: "/host"},
		{Name: "host", MountPath: "/etc/config", SubPath: "config"}, {Name: "host", MountPath: "/subpath", SubPath: "sub"},
		{Name: "host", MountPath: "/readonly", ReadOnly: true}, {Name: "image", MountPath: "/image"},
	}
	out := n.succeeds(t, p)
	contains(t, out, " /memory tmpfs", " 8 ", "from a file\nfrom a file\nbelow\n", "Read-only file system\nread-only", "\nimage\n", "\nimage read-only\n")
	if b, _ := os.ReadFile(filepath.Join(dir, "written")); string(b) != "to the host\n" {
		t.Errorf("the host has %q", b)
	}
}

func downwardAPI(t *testing.T, n *node) {
	p := once("downward", `echo "$NAME $NAMESPACE $NODE $HOST $LIMIT"; hostname -i; echo "ip $IP"; cat /info/labels /info/annotations /info/uid /info/cpu; echo; echo uid $UID_`)
	p.Labels = map[string]string{"color": "blue"}
	p.Annotations = map[string]string{"note": "a note"}
	c := limited(p.Spec.Containers[0], "64Mi")
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	c.Env = []corev1.EnvVar{
		{Name: "NAME", ValueFrom: field("metadata.name")}, {Name: "NAMESPACE", ValueFrom: field("metadata.namespace")}, {Name: "NODE", ValueFrom: field("spec.nodeName")},
		{Name: "HOST", ValueFrom: field("status.hostIP")}, {Name: "IP", ValueFrom: field("status.podIP")}, {Name: "UID_", ValueFrom: field("metadata.uid")},
		{Name: "LIMIT", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory"}}},
	}
	item := func(file, path string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: file, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	cpu := corev1.DownwardAPIVolumeFile{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu", Divisor: resource.MustParse("1m")}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{item("labels", "metadata.labels"), item("annotations", "metadata.annotations"), item("uid", "metadata.uid"), cpu},
		}}},
	}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "info", MountPath: "/info"}}
	p.Spec.Containers[0] = c
	out := n.succeeds(t, p)
	over := n.pod(t, "downward")
	contains(t, out, "downward-node default node "+nodeIP+" 67108864\n", "color=\"blue\"", "note=\"a note\"", string(over.UID)+"500", "uid "+string(over.UID))
	ip := over.Status.PodIP
	if ip == "" {
		t.Error("a pod without an address")
	}
	contains(t, out, "\n"+ip, "ip "+ip+"\n")
}

func hostNetwork(t *testing.T, n *node) {
	p := once("hostnet", "ip address show node0; hostname")
	p.Spec.HostNetwork = true
	contains(t, n.succeeds(t, p), nodeIP)
}

func hostPorts(t *testing.T, n *node) {
	p := pod("hostports", shell("main", `while :; do echo "to the pod" | nc -l -p 7100; done`))
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 7100, HostPort: 17100}}
	n.run(t, p)
	for _, ip := range []string{nodeIP, "127.0.0.1"} {
		var got string
		nodetest.Eventually(t, "an answer by "+ip, func() bool {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ip+":17100")
			if err != nil {
				return false
			}
			defer conn.Close()
			b, _ := io.ReadAll(conn)
			got = string(b)
			return got != ""
		})
		if got != "to the pod\n" {
			t.Errorf("by %s came %q", ip, got)
		}
	}
}

func hostNamespaces(t *testing.T, n *node) {
	p := once("hostpid", "readlink /proc/self/ns/pid; readlink /proc/self/ns/ipc")
	p.Spec.HostPID, p.Spec.HostIPC = true, true
	out := n.succeeds(t, p)
	for _, ns := range []string{"pid", "ipc"} {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		contains(t, out, link)
	}
	shared := pod("sharepid", shell("one", "exec sleep 4321"), shell("two", "until ps -o args | grep -q '^sleep 4321'; do sleep 0.1; done; echo seen; "+idle))
	shared.Spec.ShareProcessNamespace = ptr.To(true)
	n.add(t, shared)
	n.said(t, "sharepid", "two", "seen")
}

func users(t *testing.T, n *node) {
	p := share(once("users", "id; stat -c '%g %a' /share; touch /share/mine && stat -c '%u:%g' /share/mine"), emptyDir())
	p.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: ptr.To(int64(1234)), RunAsGroup: ptr.To(int64(2345)), FSGroup: ptr.To(int64(3456)), SupplementalGroups: []int64{4567}, RunAsNonRoot: ptr.To(true),
	}
	contains(t, n.succeeds(t, p), "uid=1234 gid=2345", "3456", "4567", "3456 2777", "1234:3456")
	root := once("nonroot", "id")
	root.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	n.add(t, root)
	n.wait(t, "nonroot", "is refused", func(p *corev1.Pod) bool {
		w := status(p, "main").State.Waiting
		return w != nil && w.Reason == "CreateContainerConfigError"
	})
}

// rights asks /proc/self/status in containers of several security contexts.
func rights(t *testing.T, n *node) {
	profiles := filepath.Join(n.root, "seccomp")
	mkdir(t, profiles)
	write(t, filepath.Join(profiles, "nomkdir.json"), `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":38}]}`)
	seccomp := func(typ corev1.SeccompProfileType, file string) *corev1.SeccompProfile {
		p := &corev1.SeccompProfile{Type: typ}
		if file != "" {
			p.LocalhostProfile = &file
		}
		return p
	}
	ask := "grep -E '^(Cap(Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status; "
	for _, c := range []struct {
		name, script string
		context      corev1.SecurityContext
		want         []string
	}{
		{"none", "", corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: seccomp("RuntimeDefault", "")},
			[]string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t0", "Seccomp:\t2"}},
		{"one", "", corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}, SeccompProfile: seccomp("Unconfined", "")},
			[]string{"CapEff:\t0000000000001000", "Seccomp:\t0"}},
		{"nnp", "", corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)}, []string{"NoNewPrivs:\t1"}},
		{"readonly", "(touch /x 2>&1 || true); touch /dev/shm/x; ", corev1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)}, []string{"Read-only file system"}},
		{"localhost", "(mkdir /x 2>&1 || true); ", corev1.SecurityContext{SeccompProfile: seccomp("Localhost", "nomkdir.json")}, []string{"Function not implemented", "Seccomp:\t2"}},
		{"privileged", "ls -d /dev/kmsg; touch /proc/sys/net/ipv4/ip_forward && echo writable; ", corev1.SecurityContext{Privileged: ptr.To(true)}, []string{"/dev/kmsg\n", "writable", "Seccomp:\t0"}},
		{"masked", "(touch /proc/sys/kernel/domainname 2>&1 || true); ", corev1.SecurityContext{}, []string{"Read-only file system"}},
	} {
		p := once("rights-"+c.name, "set -e; "+c.script+ask)
		p.Spec.Containers[0].SecurityContext = &c.context
		contains(t, n.succeeds(t, p), c.want...)
	}
}

func userNamespace(t *testing.T, n *node) {
	p := share(once("userns", "cat /proc/self/uid_map; id -u; touch /share/x && stat -c %u /share/x; readlink /proc/self/ns/user"), emptyDir())
	p.Spec.HostUsers = ptr.To(false)
	out := n.succeeds(t, p)
	f := strings.Fields(out)
	if len(f) != 6 || f[0] != "0" || f[1] == "0" || f[2] != "65536" || f[3] != "0" || f[4] != "0" {
		t.Errorf("it wrote %q", out)
	}
}

func sysctls(t *testing.T, n *node) {
	p := once("sysctls", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range; hostname; cat /etc/hosts /etc/resolv.conf")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "81"}}}
	p.Spec.Hostname = "myself"
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "203.0.113.9", Hostnames: []string{"elsewhere"}}}
	p.Spec.DNSPolicy = corev1.DNSNone
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"203.0.113.53"}, Searches: []string{"example.org"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("3")}}}
	out := n.succeeds(t, p)
	ip := n.pod(t, "sysctls").Status.PodIP
	contains(t, out, "81\n", "myself\n", "203.0.113.9\telsewhere", fmt.Sprintf("%s\tmyself", ip), "nameserver 203.0.113.53", "search example.org", "options ndots:3")
}
