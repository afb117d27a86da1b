package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func networkChecks() []check {
	return []check{
		{"pods of one node see each other", sameNode},
		{"pods of two nodes see each other", acrossNodes},
		{"a Service across nodes keeps the source", serviceAcross},
		{"a Service within a node keeps the source", serviceWithin},
		{"a Service leads a pod to itself", hairpin},
		{"a Service spreads over both nodes", spreads},
		{"a Service by UDP", serviceUDP},
		{"a Service without endpoints refuses", noEndpoints},
		{"a Service follows its pods", follows},
		{"session affinity", affinity},
		{"named target ports", namedPort},
		{"a headless Service names its pods", headless},
		{"names of Services", serviceNames},
		{"SRV and pod names", podNames},
		{"an ExternalName", externalName},
		{"a host name and a subdomain", subdomain},
		{"dnsConfig", dnsConfig},
		{"hostAliases", hostAliases},
		{"the API by its Service", apiService},
		{"NodePort of every node", nodePorts},
		{"NodePort by UDP", nodePortUDP},
		{"externalTrafficPolicy Local keeps the source", trafficLocal},
		{"internalTrafficPolicy Local", internalLocal},
		{"an external address", externalIP},
		{"hostPort", hostPort},
		{"hostPort by UDP", hostPortUDP},
		{"one hostPort is one pod's on a node", hostPortTaken},
		{"host network", hostNetwork},
		{"from the host network by a Service", hostToService},
		{"from a node to its pods and others'", nodeToPods},
		{"outside sees the node", outside},
		{"large transfers across nodes", transfer},
		{"pods not ready by publishNotReadyAddresses", notReady},
	}
}

// two runs a peer called server on one node and one called client on another, or
// the same one.
func (s *space) two(t *testing.T, server, client *node) (serverIP, clientIP string) {
	t.Helper()
	s.create(t, s.ns, on(server, pod("server", peer())))
	c := s.run(t, on(client, pod("client", peer())))
	return s.wait(t, "server", "is ready", ready).Status.PodIP, c.Status.PodIP
}

// ask has a pod ask a URL until there is an answer, since kube-proxy announces
// nothing, and returns this.
func (s *space) ask(t *testing.T, pod, url string) string {
	t.Helper()
	var out string
	eventually(t, pod+" gets an answer of "+url, func() bool {
		var err error
		out, err = s.try(t.Context(), pod, "main", "peer", "ask", url)
		return err == nil
	})
	return strings.TrimSpace(out)
}

// wantAnswer has a pod ask a URL; the server has to see the client as said.
func (s *space) wantAnswer(t *testing.T, pod, url, want string) {
	t.Helper()
	if got := s.ask(t, pod, url); got != want {
		t.Errorf("%s asked %s: %q, want %q", pod, url, got, want)
	}
}

func web(host string, port int32) string {
	return "http://" + net.JoinHostPort(host, fmt.Sprint(port)) + "/"
}

func sameNode(t *testing.T, s *space) {
	server, client := s.two(t, s.nodes[0], s.nodes[0])
	s.wantAnswer(t, "client", web(server, 8080), "server "+client)
	s.wantAnswer(t, "server", web(client, 8080), "client "+server)
}

func acrossNodes(t *testing.T, s *space) {
	server, client := s.two(t, s.nodes[0], s.nodes[1])
	s.wantAnswer(t, "client", web(server, 8080), "server "+client)
	s.wantAnswer(t, "server", web(client, 8080), "client "+server)
	s.wantAnswer(t, "client", "udp://"+server+":8080", "server "+client)
}

// expose makes a Service for the pods called server and returns its address.
func (s *space) expose(t *testing.T, change ...func(*corev1.ServiceSpec)) *corev1.Service {
	t.Helper()
	o := service("server")
	for _, f := range change {
		f(&o.Spec)
	}
	s.create(t, s.ns, o)
	return o
}

func serviceAcross(t *testing.T, s *space) {
	_, client := s.two(t, s.nodes[0], s.nodes[1])
	s.wantAnswer(t, "client", web(s.expose(t).Spec.ClusterIP, 80), "server "+client)
}

func serviceWithin(t *testing.T, s *space) {
	_, client := s.two(t, s.nodes[1], s.nodes[1])
	s.wantAnswer(t, "client", web(s.expose(t).Spec.ClusterIP, 80), "server "+client)
}

// hairpin: only this flow must be masqueraded, since the pod would drop an answer from its own
// address.
func hairpin(t *testing.T, s *space) {
	s.run(t, pod("server", peer()))
	if got := s.ask(t, "server", web(s.expose(t).Spec.ClusterIP, 80)); !strings.HasPrefix(got, "server ") {
		t.Errorf("%q", got)
	}
}

// names returns the names of the answering pods, without doubles.
func names(out string) []string {
	var list []string
	for line := range strings.Lines(out) {
		list = append(list, strings.Fields(line + " -")[0])
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func spreads(t *testing.T, s *space) {
	s.create(t, s.ns, on(s.nodes[0], labelled(pod("a", peer()), "app", "server")))
	s.create(t, s.ns, on(s.nodes[1], labelled(pod("b", peer()), "app", "server")))
	s.run(t, pod("client", peer()))
	url := web(s.expose(t).Spec.ClusterIP, 80)
	s.wait(t, "a", "is ready", ready)
	s.wait(t, "b", "is ready", ready)
	eventually(t, "both pods answer and none fails", func() bool {
		out, err := s.try(t.Context(), "client", "main", "peer", "ask", "-n", "40", url)
		return err == nil && slices.Equal(names(out), []string{"a", "b"})
	})
}

func serviceUDP(t *testing.T, s *space) {
	_, client := s.two(t, s.nodes[0], s.nodes[1])
	s.wantAnswer(t, "client", "udp://"+s.expose(t).Spec.ClusterIP+":80", "server "+client)
}

func noEndpoints(t *testing.T, s *space) {
	s.run(t, pod("client", peer()))
	url := web(s.expose(t).Spec.ClusterIP, 80)
	eventually(t, "it is refused", func() bool {
		out, err := s.try(t.Context(), "client", "main", "peer", "ask", url)
		return err != nil && strings.Contains(out, "refused")
	})
}

func follows(t *testing.T, s *space) {
	s.create(t, s.ns, labelled(pod("a", peer()), "app", "server"))
	s.run(t, pod("client", peer()))
	url := web(s.expose(t).Spec.ClusterIP, 80)
	s.wait(t, "a", "is ready", ready)
	if got := s.ask(t, "client", url); !strings.HasPrefix(got, "a ") {
		t.Errorf("%q", got)
	}
	s.run(t, labelled(pod("b", peer()), "app", "server"))
	remove(t, s.cluster, pods(s.ns, "a"))
	gone(t, s.cluster, pods(s.ns, "a"))
	eventually(t, "only b answers", func() bool {
		out, err := s.try(t.Context(), "client", "main", "peer", "ask", "-n", "10", url)
		return err == nil && slices.Equal(names(out), []string{"b"})
	})
}

func affinity(t *testing.T, s *space) {
	for i, name := range []string{"a", "b"} {
		s.create(t, s.ns, on(s.nodes[i], labelled(pod(name, peer()), "app", "server")))
	}
	s.run(t, pod("client", peer()))
	s.wait(t, "a", "is ready", ready)
	s.wait(t, "b", "is ready", ready)
	o := s.expose(t, func(spec *corev1.ServiceSpec) { spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	eventually(t, "both are endpoints", func() bool { return len(s.endpoints(t, "server")) == 2 })
	s.ask(t, "client", web(o.Spec.ClusterIP, 80))
	out, err := s.try(t.Context(), "client", "main", "peer", "ask", "-n", "20", web(o.Spec.ClusterIP, 80))
	if err != nil || len(names(out)) != 1 {
		t.Errorf("%v, %q", err, out)
	}
}

// endpoints are the addresses of a Service's that are ready.
func (s *space) endpoints(t *testing.T, service string) []string {
	t.Helper()
	list, err := s.api.DiscoveryV1().EndpointSlices(s.ns).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		for _, p := range e.Endpoints {
			if p.Conditions.Ready == nil || *p.Conditions.Ready {
				all = append(all, p.Addresses...)
			}
		}
	}
	return all
}

func namedPort(t *testing.T, s *space) {
	s.two(t, s.nodes[0], s.nodes[1])
	o := s.expose(t, func(spec *corev1.ServiceSpec) {
		spec.Ports = []corev1.ServicePort{{Name: "a", Port: 81, TargetPort: intstr.FromString("web")}, {Name: "b", Port: 82, TargetPort: intstr.FromString("web")}}
	})
	for _, port := range []int32{81, 82} {
		if got := s.ask(t, "client", web(o.Spec.ClusterIP, port)); !strings.HasPrefix(got, "server ") {
			t.Errorf("port %d: %q", port, got)
		}
	}
}

// resolves waits until a name has these addresses in a pod's eyes.
func (s *space) resolves(t *testing.T, pod, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	var got string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s is %q, want %q", name, got, want)
		}
	})
	eventually(t, name+" is resolved", func() bool {
		out, err := s.try(t.Context(), pod, "main", "peer", "resolve", name)
		got = out
		list := strings.Fields(out)
		slices.Sort(list)
		return err == nil && slices.Equal(list, want)
	})
}

func headless(t *testing.T, s *space) {
	a := s.run(t, on(s.nodes[0], labelled(pod("a", peer()), "app", "server"))).Status.PodIP
	b := s.run(t, on(s.nodes[1], labelled(pod("b", peer()), "app", "server"))).Status.PodIP
	s.expose(t, func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	s.resolves(t, "a", "server", a, b)
}

func serviceNames(t *testing.T, s *space) {
	s.two(t, s.nodes[0], s.nodes[1])
	ip := s.expose(t).Spec.ClusterIP
	for _, name := range []string{"server", "server." + s.ns, "server." + s.ns + ".svc", "server." + s.ns + ".svc.cluster.local", "server." + s.ns + ".svc.cluster.local."} {
		s.resolves(t, "client", name, ip)
	}
	s.ask(t, "client", "http://server/")
}

func podNames(t *testing.T, s *space) {
	ip := s.run(t, pod("client", peer())).Status.PodIP
	s.resolves(t, "client", strings.ReplaceAll(ip, ".", "-")+"."+s.ns+".pod.cluster.local", ip)
	if out, err := s.try(t.Context(), "client", "main", "peer", "srv", "_dns._udp.kube-dns.kube-system.svc.cluster.local"); err != nil || out != "kube-dns.kube-system.svc.cluster.local. 53\n" {
		t.Errorf("%v, %q", err, out)
	}
}

func externalName(t *testing.T, s *space) {
	s.run(t, pod("client", peer()))
	s.create(t, s.ns, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "alias"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "kubernetes.default.svc.cluster.local",
	}})
	s.resolves(t, "client", "alias", "10.96.0.1")
}

func subdomain(t *testing.T, s *space) {
	s.expose(t, func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	p := pod("server", peer())
	p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "me", "server", ptr.To(false)
	ip := s.run(t, p).Status.PodIP
	s.resolves(t, "server", "me.server."+s.ns+".svc.cluster.local", ip)
	full := "me.server." + s.ns + ".svc.cluster.local"
	if got := s.sh(t, "server", `hostname; cat /proc/sys/kernel/hostname /etc/hostname; echo $HOSTNAME; grep me /etc/hosts`); got != "me\nme\nme\nme\n"+ip+"\t"+full+"\tme\n" {
		t.Errorf("%q", got)
	}
}

func dnsConfig(t *testing.T, s *space) {
	p := pod("dns", sleeper("main"))
	p.Spec.DNSPolicy = corev1.DNSNone
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}, Searches: []string{"example.org"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("3")}}}
	s.run(t, p)
	if got := s.sh(t, "dns", "cat /etc/resolv.conf"); got != "search example.org\nnameserver 192.0.2.53\noptions ndots:3\n" {
		t.Errorf("%q", got)
	}
	s.run(t, pod("cluster", sleeper("main")))
	got := s.sh(t, "cluster", "cat /etc/resolv.conf")
	for _, want := range []string{"nameserver " + dnsIP + "\n", "search " + s.ns + ".svc.cluster.local svc.cluster.local cluster.local\n", "ndots:5"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

func hostAliases(t *testing.T, s *space) {
	p := pod("aliases", sleeper("main"))
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "192.0.2.7", Hostnames: []string{"seven", "seven.example.org"}}}
	s.run(t, p)
	if got := s.sh(t, "aliases", "cat /etc/hosts"); !strings.Contains(got, "192.0.2.7\tseven\tseven.example.org") || !strings.Contains(got, "\taliases\n") {
		t.Errorf("%q", got)
	}
}

func apiService(t *testing.T, s *space) {
	s.run(t, pod("client", peer()))
	if out, err := s.try(t.Context(), "client", "main", "peer", "api"); err != nil || !strings.Contains(out, `"minor": "37"`) {
		t.Errorf("%v, %q", err, out)
	}
}

// fetch asks a URL from outside of the cluster until there is an answer.
func fetch(t *testing.T, url string) string {
	t.Helper()
	var got string
	eventually(t, "an answer of "+url, func() bool {
		var err error
		got, err = get(t.Context(), url)
		return err == nil
	})
	return strings.TrimSpace(got)
}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func nodePort(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort }

func nodePorts(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("server", peer())))
	o := s.expose(t, nodePort)
	for _, n := range s.nodes {
		if got := fetch(t, web(n.ip, o.Spec.Ports[0].NodePort)); !strings.HasPrefix(got, "server ") {
			t.Errorf("by %s: %q", n.name, got)
		}
	}
}

func nodePortUDP(t *testing.T, s *space) {
	s.run(t, on(s.nodes[1], pod("server", peer())))
	o := s.expose(t, nodePort)
	for _, n := range s.nodes {
		eventually(t, "an answer by "+n.name, func() bool {
			got, err := datagram(t.Context(), net.JoinHostPort(n.ip, fmt.Sprint(o.Spec.Ports[1].NodePort)))
			return err == nil && strings.HasPrefix(got, "server ")
		})
	}
}

func datagram(ctx context.Context, to string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "who?"); err != nil {
		return "", err
	}
	buf := make([]byte, 1500)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

func trafficLocal(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("server", peer())))
	o := s.expose(t, nodePort, func(spec *corev1.ServiceSpec) { spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	port := o.Spec.Ports[0].NodePort
	if got := fetch(t, web(s.nodes[0].ip, port)); got != "server "+controlIP {
		t.Errorf("the pod saw %q, want %s", got, controlIP)
	}
	if got, err := get(t.Context(), web(s.nodes[1].ip, port)); err == nil {
		t.Errorf("a node without a pod answered %q", got)
	}
}

func internalLocal(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("server", peer())))
	near := s.run(t, on(s.nodes[0], pod("near", peer()))).Status.PodIP
	s.run(t, on(s.nodes[1], pod("far", peer())))
	o := s.expose(t, func(spec *corev1.ServiceSpec) {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	})
	s.wantAnswer(t, "near", web(o.Spec.ClusterIP, 80), "server "+near)
	if out, err := s.try(t.Context(), "far", "main", "peer", "ask", web(o.Spec.ClusterIP, 80)); err == nil {
		t.Errorf("a pod of the other node got %q", out)
	}
}

func externalIP(t *testing.T, s *space) {
	const ip = "203.0.113.80"
	s.run(t, on(s.nodes[0], pod("server", peer())))
	command(t, "ip", "route", "replace", ip, "via", s.nodes[1].ip)
	s.expose(t, func(spec *corev1.ServiceSpec) { spec.ExternalIPs = []string{ip} })
	if got := fetch(t, web(ip, 80)); !strings.HasPrefix(got, "server ") {
		t.Errorf("%q", got)
	}
}

func onHost(p *corev1.Pod, port int32, proto corev1.Protocol) *corev1.Pod {
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: port, Protocol: proto}}
	return p
}

func hostPort(t *testing.T, s *space) {
	s.run(t, onHost(on(s.nodes[0], pod("server", peer())), 7001, corev1.ProtocolTCP))
	far := s.run(t, on(s.nodes[1], pod("client", peer()))).Status.PodIP
	if got := fetch(t, web(s.nodes[0].ip, 7001)); got != "server "+controlIP {
		t.Errorf("from outside: %q", got)
	}
	got := s.ask(t, "client", web(s.nodes[0].ip, 7001))
	if got != "server "+far && got != "server "+s.nodes[1].ip {
		t.Errorf("from a pod: %q", got)
	}
}

func hostPortUDP(t *testing.T, s *space) {
	s.run(t, onHost(on(s.nodes[1], pod("server", peer())), 7002, corev1.ProtocolUDP))
	eventually(t, "an answer", func() bool {
		got, err := datagram(t.Context(), s.nodes[1].ip+":7002")
		return err == nil && got == "server "+controlIP+"\n"
	})
}

func hostPortTaken(t *testing.T, s *space) {
	s.run(t, onHost(on(s.nodes[0], pod("first", peer())), 7003, corev1.ProtocolTCP))
	s.create(t, s.ns, onHost(on(s.nodes[0], pod("second", peer())), 7003, corev1.ProtocolTCP))
	s.wait(t, "second", "has no place", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "free ports")
		})
	})
	remove(t, s.cluster, pods(s.ns, "first"))
	s.wait(t, "second", "is ready", ready)
	if got := fetch(t, web(s.nodes[0].ip, 7003)); got != "second "+controlIP {
		t.Errorf("%q", got)
	}
}

func hostNetwork(t *testing.T, s *space) {
	p := on(s.nodes[1], pod("host", peer()))
	p.Spec.HostNetwork = true
	p.Spec.Containers[0].Command = []string{"peer", "serve", "-http", "7010"}
	p.Spec.Containers[0].Ports = nil
	p.Spec.Containers[0].ReadinessProbe = nil
	if got := s.run(t, p).Status.PodIP; got != s.nodes[1].ip {
		t.Errorf("its address is %s", got)
	}
	if got := s.sh(t, "host", "hostname; echo $HOSTNAME"); got != "node2\nnode2\n" {
		t.Errorf("its name is %q", got)
	}
	s.run(t, on(s.nodes[0], pod("client", peer())))
	if got := s.ask(t, "client", web(s.nodes[1].ip, 7010)); !strings.HasPrefix(got, "host ") {
		t.Errorf("%q", got)
	}
}

func hostToService(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("server", peer())))
	o := s.expose(t)
	for _, n := range s.nodes {
		p := on(n, pod("on-"+n.name, sleeper("main")))
		p.Spec.HostNetwork = true
		p.Spec.DNSPolicy = corev1.DNSClusterFirstWithHostNet
		s.run(t, p)
		if got := s.ask(t, p.Name, web(o.Spec.ClusterIP, 80)); !strings.HasPrefix(got, "server ") {
			t.Errorf("from %s: %q", n.name, got)
		}
		if got := s.ask(t, p.Name, "http://server/"); !strings.HasPrefix(got, "server ") {
			t.Errorf("by name from %s: %q", n.name, got)
		}
	}
}

func nodeToPods(t *testing.T, s *space) {
	ip := s.run(t, on(s.nodes[0], pod("server", peer()))).Status.PodIP
	if !s.nodes[0].answers(t.Context(), web(ip, 8080)) {
		t.Error("its own node has no answer")
	}
	if !s.nodes[1].answers(t.Context(), web(ip, 8080)) {
		t.Error("the other node has no answer")
	}
	if got := fetch(t, web(ip, 8080)); got != "server "+controlIP {
		t.Errorf("the control plane got %q", got)
	}
}

func outside(t *testing.T, s *space) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", controlIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, "outside "+host)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	s.run(t, on(s.nodes[1], pod("client", peer())))
	s.wantAnswer(t, "client", "http://"+l.Addr().String()+"/", "outside "+s.nodes[1].ip)
}

func transfer(t *testing.T, s *space) {
	s.run(t, on(s.nodes[0], pod("server", shell("main", "mkdir /www; dd if=/dev/urandom of=/www/file bs=1M count=64 2>/dev/null; sha256sum </www/file; exec httpd -f -p 8080 -h /www"))))
	sum := s.said(t, "server", "main", "\n")
	s.run(t, on(s.nodes[1], pod("client", sleeper("main"))))
	ip := s.wait(t, "server", "is there", func(*corev1.Pod) bool { return true }).Status.PodIP
	if got := s.sh(t, "client", "wget -q -O - http://"+ip+":8080/file | sha256sum"); got != sum {
		t.Errorf("%q came of %q", got, sum)
	}
}

func notReady(t *testing.T, s *space) {
	p := pod("server", peer())
	p.Spec.Containers[0].ReadinessProbe = probed(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"false"}}}, 1)
	s.create(t, s.ns, p)
	client := s.run(t, pod("client", peer())).Status.PodIP
	hidden := s.expose(t)
	o := service("server")
	o.Name = "all"
	o.Spec.PublishNotReadyAddresses = true
	s.create(t, s.ns, o)
	s.wantAnswer(t, "client", web(o.Spec.ClusterIP, 80), "server "+client)
	if out, err := s.try(t.Context(), "client", "main", "peer", "ask", web(hidden.Spec.ClusterIP, 80)); err == nil {
		t.Errorf("the Service without it answered %q", out)
	}
}
