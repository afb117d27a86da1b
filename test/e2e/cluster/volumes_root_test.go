package cluster

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func volumeChecks() []check {
	return []check{
		{"a ConfigMap as files", configMapFiles},
		{"a ConfigMap that changes", configMapChanges},
		{"a ConfigMap that comes late", configMapLate},
		{"a Secret as files", secretFiles},
		{"variables of ConfigMaps and Secrets", envFrom},
		{"variables of the pod", downwardEnv},
		{"labels as a file that changes", downwardChanges},
		{"a projected volume", projected},
		{"a token for an audience", token},
		{"emptyDir between containers", emptyDir},
		{"emptyDir outlives a container", emptyDirStays},
		{"emptyDir in memory", emptyDirMemory},
		{"emptyDir over its limit is evicted", emptyDirEvicted},
		{"the log and the layer over the limit are evicted", layerEvicted},
		{"hostPath", hostPaths},
		{"hostPath that has to be there", hostPathMissing},
		{"subPath and subPathExpr", subPaths},
		{"read-only mounts", readOnly},
		{"read-only all the way down", recursiveReadOnly},
		{"mounts that propagate", propagation},
		{"fsGroup", fsGroup},
		{"an image as a volume", imageVolume},
		{"a claim of a volume on the host", claim},
		{"a local volume binds its pod to the node", localVolume},
	}
}

// mounted gives a pod a volume, and its containers a mount of it.
func mounted(p *corev1.Pod, name, path string, source corev1.VolumeSource) *corev1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].VolumeMounts = append(p.Spec.Containers[i].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path})
	}
	return p
}

func ofConfigMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func (s *space) configMap(t *testing.T, name string, data map[string]string) {
	t.Helper()
	s.create(t, s.ns, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data})
}

func configMapFiles(t *testing.T, s *space) {
	s.configMap(t, "c", map[string]string{"a": "one\n", "b": "two\n"})
	p := once("files", "cat /c/a /c/b /single; (echo no >/c/a) 2>/dev/null || echo read-only")
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "c", MountPath: "/single", SubPath: "b"}}
	if out := s.succeeds(t, mounted(p, "c", "/c", ofConfigMap("c"))); out != "one\ntwo\ntwo\nread-only\n" {
		t.Errorf("%q", out)
	}
}

func configMapChanges(t *testing.T, s *space) {
	s.configMap(t, "c", map[string]string{"a": "before"})
	s.run(t, mounted(pod("changes", shell("main", "until grep -q after /c/a; do sleep 0.5; done; echo changed; "+idle)), "c", "/c", ofConfigMap("c")))
	if err := s.api.CoreV1().RESTClient().Patch("application/merge-patch+json").Namespace(s.ns).Resource("configmaps").Name("c").Body([]byte(`{"data":{"a":"after"}}`)).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	s.said(t, "changes", "main", "changed")
}

func configMapLate(t *testing.T, s *space) {
	s.create(t, s.ns, mounted(once("late", "cat /c/a"), "c", "/c", ofConfigMap("c")))
	eventually(t, "kubelet says what is missing", func() bool { return strings.Contains(s.events(s.ns, "late"), `configmap "c" not found`) })
	s.configMap(t, "c", map[string]string{"a": "late\n"})
	if s.ended(t, "late"); s.output(t, "late", &corev1.PodLogOptions{}) != "late\n" {
		t.Error("not what it is to show")
	}
}

func secretFiles(t *testing.T, s *space) {
	s.create(t, s.ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "secret\n"}})
	p := mounted(once("secret", "cat /s/key; stat -L -c '%a %u' /s/key; grep ' /s tmpfs' /proc/mounts | wc -l"), "s", "/s",
		corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To(int32(0o400))}})
	if out := s.succeeds(t, p); out != "secret\n400 0\n1\n" {
		t.Errorf("%q", out)
	}
}

func envFrom(t *testing.T, s *space) {
	s.configMap(t, "c", map[string]string{"FROM_MAP": "one"})
	s.create(t, s.ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"FROM_SECRET": "two"}})
	p := once("env", "echo $P_FROM_MAP $FROM_SECRET $SUM")
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
		{Prefix: "P_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}},
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
	}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SUM", Value: "$(P_FROM_MAP)-$(FROM_SECRET)-$$(NOT)"}}
	if out := s.succeeds(t, p); out != "one two one-two-$(NOT)\n" {
		t.Errorf("%q", out)
	}
}

func downwardEnv(t *testing.T, s *space) {
	p := on(s.nodes[0], once("down", `echo "$NAME $NS $NODE $HOST $LIMIT"; [ "$IP" = "$(hostname -i)" ] && echo same address`))
	p.Spec.Containers[0] = limited(p.Spec.Containers[0], "250m", "64Mi")
	for name, path := range map[string]string{"NAME": "metadata.name", "NS": "metadata.namespace", "NODE": "spec.nodeName", "HOST": "status.hostIP", "IP": "status.podIP"} {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}})
	}
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "LIMIT", ValueFrom: &corev1.EnvVarSource{
		ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")},
	}})
	if out := s.succeeds(t, p); out != "down "+s.ns+" node1 "+s.nodes[0].ip+" 64\nsame address\n" {
		t.Errorf("%q", out)
	}
}

func downwardChanges(t *testing.T, s *space) {
	s.run(t, mounted(pod("labels", shell("main", `until grep -q 'later="yes"' /down/labels; do sleep 0.5; done; echo changed; `+idle)), "down", "/down", corev1.VolumeSource{
		DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}},
	}))
	patch(t, s.cluster, pods(s.ns, "labels"), `{"metadata":{"labels":{"later":"yes"}}}`)
	s.said(t, "labels", "main", "changed")
}

func projected(t *testing.T, s *space) {
	s.configMap(t, "c", map[string]string{"a": "map\n"})
	s.create(t, s.ns, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"b": "secret\n"}})
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	p := mounted(once("projected", "cat /all/a /all/b; cat /all/name; echo; ls /all"), "all", "/all", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("c")}}, {Secret: &corev1.SecretProjection{LocalObjectReference: ref("s")}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
	}}})
	if out := s.succeeds(t, p); out != "map\nsecret\nprojected\na\nb\nname\n" {
		t.Errorf("%q", out)
	}
}

func token(t *testing.T, s *space) {
	p := mounted(once("token", `tr . '\n' </token/t | wc -l`), "token", "/token", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: ptr.To(int64(600)), Path: "t"}},
	}}})
	if out := s.succeeds(t, p); out != "2\n" { // dots of a JWT
		t.Errorf("%q", out)
	}
}

func emptyDir(t *testing.T, s *space) {
	p := shared(pod("both", shell("main", "until [ -f /share/x ]; do sleep 0.1; done; cat /share/x; echo back >/share/y; "+idle), shell("other", "echo there >/share/x; until [ -f /share/y ]; do sleep 0.1; done; cat /share/y; "+idle)))
	s.run(t, p)
	s.said(t, "both", "main", "there\n")
	s.said(t, "both", "other", "back\n")
}

func emptyDirStays(t *testing.T, s *space) {
	s.create(t, s.ns, shared(pod("stays", shell("main", "[ -f /share/x ] && { cat /share/x; [ -f /layer ] && echo old layer; "+idle+"; }; touch /layer; echo kept >/share/x; exit 1"))))
	s.wait(t, "stays", "has started again", func(p *corev1.Pod) bool { return state(p, "main").RestartCount == 1 && ready(p) })
	if out := s.said(t, "stays", "main", "kept\n"); out != "kept\n" {
		t.Errorf("%q", out)
	}
}

func emptyDirMemory(t *testing.T, s *space) {
	p := mounted(once("memory", "grep ' /m tmpfs' /proc/mounts | wc -l; dd if=/dev/zero of=/m/x bs=1M count=10 2>&1 | grep -c 'No space'"), "m", "/m",
		corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("8Mi"))}})
	if out := s.succeeds(t, p); out != "1\n1\n" {
		t.Errorf("%q", out)
	}
}

// stubborn is a script that runs until SIGKILL: kubelet calls an evicted pod succeeded if its
// containers end well.
const stubborn = `while :; do sleep 1; done`

// evicted waits until kubelet has evicted a pod.
func (s *space) evicted(t *testing.T, name, message string) {
	t.Helper()
	e := s.wait(t, name, "is evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if e.Status.Reason != "Evicted" || !strings.Contains(e.Status.Message, message) {
		t.Errorf("%s: %s", e.Status.Reason, e.Status.Message)
	}
}

func emptyDirEvicted(t *testing.T, s *space) {
	p := mounted(pod("full", shell("main", "dd if=/dev/zero of=/e/x bs=1M count=20 2>/dev/null; "+stubborn)), "e", "/e",
		corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("10Mi"))}})
	s.create(t, s.ns, p)
	s.evicted(t, "full", `EmptyDir volume "e" exceeds the limit`)
}

func layerEvicted(t *testing.T, s *space) {
	for i, n := range s.nodes {
		p := on(n, pod([]string{"layer", "log"}[i], shell("main", []string{"dd if=/dev/zero of=/x bs=1M count=20 2>/dev/null; ", "yes 0123456789012345678901234567890123456789 | head -n 400000; "}[i]+stubborn)))
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Mi")}
		s.create(t, s.ns, p)
	}
	s.evicted(t, "layer", "ephemeral local storage usage exceeds")
	s.evicted(t, "log", "ephemeral local storage usage exceeds")
}

func ofHost(path string, kind corev1.HostPathType) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}
}

func hostPaths(t *testing.T, s *space) {
	dir := s.hostDir(t)
	write(t, filepath.Join(dir, "file"), "of the host\n")
	p := mounted(once("host", "cat /file; echo of the pod >/made/x; echo of the pod >/plain/x"), "file", "/file", ofHost(filepath.Join(dir, "file"), corev1.HostPathFile))
	p = mounted(p, "made", "/made", ofHost(filepath.Join(dir, "a/b"), corev1.HostPathDirectoryOrCreate))
	p = mounted(p, "plain", "/plain", ofHost(filepath.Join(dir, "c"), corev1.HostPathUnset))
	if out := s.succeeds(t, p); out != "of the host\n" {
		t.Errorf("%q", out)
	}
	for _, f := range []string{"a/b/x", "c/x"} {
		if got := read(t, filepath.Join(dir, f)); got != "of the pod\n" {
			t.Errorf("%s: %q", f, got)
		}
	}
}

func hostPathMissing(t *testing.T, s *space) {
	s.create(t, s.ns, mounted(once("missing", "true"), "d", "/d", ofHost(filepath.Join(s.hostDir(t), "none"), corev1.HostPathDirectory)))
	eventually(t, "kubelet says what is missing", func() bool {
		return strings.Contains(s.events(s.ns, "missing"), "hostPath type check failed")
	})
	mkdir(t, filepath.Join(s.hostDir(t), "none"))
	s.ended(t, "missing")
}

func subPaths(t *testing.T, s *space) {
	p := shared(once("sub", "echo a >/sub/x; echo b >/expr/x; cat /share/deep/er/x /share/sub/x"))
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "share", MountPath: "/sub", SubPath: "deep/er"}, corev1.VolumeMount{Name: "share", MountPath: "/expr", SubPathExpr: "$(POD)"})
	if out := s.succeeds(t, p); out != "a\nb\n" {
		t.Errorf("%q", out)
	}
}

func readOnly(t *testing.T, s *space) {
	p := shared(once("ro", "(echo no >/share/x) 2>/dev/null || echo mount; (echo no >/x) 2>/dev/null || echo root; echo yes >/tmp/x && echo tmp"))
	p.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: ptr.To(true)}
	p = mounted(p, "tmp", "/tmp", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	if out := s.succeeds(t, p); out != "mount\nroot\ntmp\n" {
		t.Errorf("%q", out)
	}
}

func recursiveReadOnly(t *testing.T, s *space) {
	dir := s.hostDir(t)
	p := mounted(once("rro", "(echo no >/d/x) 2>/dev/null || echo deep"), "d", "/d", ofHost(dir, corev1.HostPathDirectory))
	p.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
	p.Spec.Containers[0].VolumeMounts[0].RecursiveReadOnly = ptr.To(corev1.RecursiveReadOnlyEnabled)
	if out := s.succeeds(t, p); out != "deep\n" {
		t.Errorf("%q", out)
	}
	if e := state(s.ended(t, "rro"), "main"); len(e.VolumeMounts) == 0 || e.VolumeMounts[0].RecursiveReadOnly == nil || *e.VolumeMounts[0].RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled {
		t.Errorf("%+v", e.VolumeMounts)
	}
}

func propagation(t *testing.T, s *space) {
	dir := s.hostDir(t)
	source := ofHost(dir, corev1.HostPathDirectory)
	down := on(s.nodes[0], mounted(pod("down", sleeper("main")), "d", "/d", source))
	down.Spec.Containers[0].VolumeMounts[0].MountPropagation = ptr.To(corev1.MountPropagationHostToContainer)
	s.run(t, down)
	up := on(s.nodes[0], mounted(pod("up", sleeper("main")), "d", "/d", source))
	up.Spec.Containers[0].VolumeMounts[0].MountPropagation = ptr.To(corev1.MountPropagationBidirectional)
	up.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	s.run(t, up)
	none := on(s.nodes[0], mounted(pod("none", sleeper("main")), "d", "/d", source))
	s.run(t, none)
	s.sh(t, "up", "mkdir /d/m && mount -t tmpfs tmpfs /d/m && echo within >/d/m/x")
	t.Cleanup(func() { _ = command(t, s.nodes[0].inside("umount", filepath.Join(dir, "m"))...) })
	if out := s.sh(t, "down", "cat /d/m/x"); out != "within\n" {
		t.Errorf("HostToContainer shows %q", out)
	}
	if out := s.sh(t, "none", "ls /d/m"); out != "" {
		t.Errorf("None shows %q", out)
	}
	if out := s.nodes[0].run("cat", filepath.Join(dir, "m/x")); out != "within\n" {
		t.Errorf("the host has %q", out)
	}
}

func fsGroup(t *testing.T, s *space) {
	p := shared(once("group", "stat -c '%g %a' /share; id -G; touch /share/x; stat -c '%u %g' /share/x"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000)), RunAsGroup: ptr.To(int64(2000)), FSGroup: ptr.To(int64(3000)), SupplementalGroups: []int64{4000}}
	if out := s.succeeds(t, p); out != "3000 2777\n2000 3000 4000\n1000 3000\n" {
		t.Errorf("%q", out)
	}
}

func imageVolume(t *testing.T, s *space) {
	p := mounted(once("image", "[ -x /i/bin/busybox ] && echo there; (echo no >/i/x) 2>/dev/null || echo read-only"), "i", "/i",
		corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: busybox, PullPolicy: corev1.PullIfNotPresent}})
	if out := s.succeeds(t, p); out != "there\nread-only\n" {
		t.Errorf("%q", out)
	}
}

// volume makes a persistent volume of this source, a claim of it, and a pod's
// source that names the claim.
func (s *space) volume(t *testing.T, source corev1.PersistentVolumeSource, affinity *corev1.VolumeNodeAffinity) corev1.VolumeSource {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	s.create(t, "", &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	})
	s.create(t, "", &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeSource: source, StorageClassName: s.ns, NodeAffinity: affinity,
	}})
	s.create(t, s.ns, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: &s.ns, Resources: corev1.VolumeResourceRequirements{Requests: size},
	}})
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}
}

func claim(t *testing.T, s *space) {
	source := s.volume(t, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.hostDir(t)}}, nil)
	s.succeeds(t, mounted(once("writes", "echo kept >/v/x"), "v", "/v", source))
	if out := s.succeeds(t, mounted(once("reads", "cat /v/x"), "v", "/v", source)); out != "kept\n" {
		t.Errorf("%q", out)
	}
	waitFor(t, s.cluster, claims(s.ns, "claim"), "is bound", func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimBound })
	for _, name := range []string{"writes", "reads"} {
		remove(t, s.cluster, pods(s.ns, name))
	}
	remove(t, s.cluster, claims(s.ns, "claim"))
	gone(t, s.cluster, claims(s.ns, "claim"))
}

func localVolume(t *testing.T, s *space) {
	source := s.volume(t, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: s.hostDir(t)}}, &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"node2"}}}}},
	}})
	p := mounted(once("local", "echo local >/v/x; cat /v/x"), "v", "/v", source)
	if out := s.succeeds(t, p); out != "local\n" || s.ended(t, "local").Spec.NodeName != "node2" {
		t.Errorf("%q", out)
	}
}
