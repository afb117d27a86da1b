package cluster

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// idle is a script that runs until SIGTERM.
const idle = `trap 'exit 0' TERM; while :; do sleep 0.2; done`

// shell is a container that runs a script.
func shell(name, script string) corev1.Container {
	return corev1.Container{Name: name, Image: busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sh", "-c", script}}
}

// sleeper is a container that does nothing.
func sleeper(name string) corev1.Container { return shell(name, idle) }

// peer returns a container that answers its clients, by TCP and UDP on 8080.
func peer() corev1.Container {
	return corev1.Container{
		Name: "main", Image: busybox, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"peer", "serve", "-http", "8080", "-udp", "8080"},
		Env:            []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
		Ports:          []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}, PeriodSeconds: 1, TimeoutSeconds: 5},
	}
}

// pod is a pod that is labelled with its name.
func pod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{Containers: containers, TerminationGracePeriodSeconds: ptr.To(int64(2))},
	}
}

// once is a pod that runs one script to its end.
func once(name, script string) *corev1.Pod {
	p := pod(name, shell("main", script))
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	return p
}

// on makes a pod run on a node.
func on(n *node, p *corev1.Pod) *corev1.Pod {
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.name}
	return p
}

// labelled gives a pod one more label.
func labelled(p *corev1.Pod, key, value string) *corev1.Pod {
	p.Labels = maps.Clone(p.Labels)
	p.Labels[key] = value
	return p
}

// template is a pod as workloads take it.
func template(p *corev1.Pod) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels}, Spec: p.Spec}
}

// deployment is a Deployment of a pod's name.
func deployment(replicas int32, p *corev1.Pod) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.Name}}, Template: template(p)},
	}
}

// available says that so many replicas of the newest template are up, and no other.
func available(replicas int32) func(*appsv1.Deployment) bool {
	return func(d *appsv1.Deployment) bool {
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas && s.Replicas == replicas
	}
}

// service is a Service on port 80 for the pods of a name.
func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{
			{Name: "web", Port: 80, TargetPort: intstr.FromInt32(8080)},
			{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolUDP},
		}},
	}
}

// run makes a pod and waits until it is ready.
func (s *space) run(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.create(t, s.ns, p)
	return s.wait(t, p.Name, "is ready", ready)
}

// wait waits until a pod is as ok says.
func (s *space) wait(t *testing.T, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	return waitFor(t, s.cluster, pods(s.ns, name), what, ok)
}

// ended waits until a pod is over.
func (s *space) ended(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return s.wait(t, name, "is over", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// succeeds runs a pod to its successful end, and returns the output of its container main.
func (s *space) succeeds(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	s.create(t, s.ns, p)
	if o := s.ended(t, p.Name); o.Status.Phase != corev1.PodSucceeded {
		t.Fatalf("%s %s: %q", p.Name, o.Status.Phase, s.output(t, p.Name, &corev1.PodLogOptions{Container: "main"}))
	}
	return s.output(t, p.Name, &corev1.PodLogOptions{Container: "main"})
}

func ready(p *corev1.Pod) bool { return condition(p, corev1.PodReady) == corev1.ConditionTrue }

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// state returns the status of a pod's container, of any kind.
func state(p *corev1.Pod, container string) corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, s := range list {
			if s.Name == container {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

// waits says that a container waits for a reason.
func waits(container, reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		w := state(p, container).State.Waiting
		return w != nil && w.Reason == reason
	}
}

const corefile = `.:53 {
	errors
	health
	ready
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		pods insecure
		fallthrough in-addr.arpa ip6.arpa
		ttl 5
	}
	cache 5
	loadbalance
}
`

func dnsObjects() []runtime.Object {
	const name = "coredns"
	p := pod(name, corev1.Container{
		Name: "main", Image: "registry.example/coredns:1", Args: []string{"-conf", "/etc/coredns/Corefile"},
		VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns"}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8181)}}, PeriodSeconds: 1, TimeoutSeconds: 5},
	})
	p.Spec.ServiceAccountName = name
	p.Spec.DNSPolicy = corev1.DNSDefault
	p.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}}
	meta := metav1.ObjectMeta{Name: name}
	port := func(name string, proto corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: 53, Protocol: proto}
	}
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"Corefile": corefile}},
		deployment(1, p),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns", Labels: map[string]string{"k8s-app": "kube-dns"}}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name}, ClusterIP: dnsIP, Ports: []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
		}},
	}
}

// dnsRoles let CoreDNS read the objects that it answers for.
func dnsRoles() []runtime.Object {
	const name = "coredns"
	read := func(group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
	}
	meta := metav1.ObjectMeta{Name: name}
	return []runtime.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{read("", "endpoints", "services", "pods", "namespaces"), read("discovery.k8s.io", "endpointslices")}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: metav1.NamespaceSystem}},
		},
	}
}
