package networks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/docker/networks"
	"github.com/longshore/longshore/internal/face/docker/view"
)

// defined is a fake of networks that users define.
type defined struct {
	list []core.NetworkDefinition
	busy string // a network that cannot be removed
}

func (d *defined) Define(_ context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error) {
	if strings.Contains(def.Name, "/") {
		return def, errdefs.ErrInvalidArgument
	}
	def.Created = time.Now().UTC()
	if len(def.Subnets) == 0 {
		def.Subnets = []core.Subnet{{Range: netip.MustParsePrefix(fmt.Sprintf("172.%d.0.0/16", 17+len(d.list)))}}
	}
	d.list = append(d.list, def)
	return def, nil
}

func (d *defined) Defined() []core.NetworkDefinition { return slices.Clone(d.list) }

func (d *defined) Undefine(_ context.Context, name string) error {
	if name == d.busy {
		return errdefs.ErrFailedPrecondition
	}
	n := len(d.list)
	d.list = slices.DeleteFunc(d.list, func(def core.NetworkDefinition) bool { return def.Name == name })
	if len(d.list) == n {
		return errdefs.ErrNotFound
	}
	return nil
}

// rig is a node with the requests about networks.
type rig struct {
	t      *testing.T
	node   *enginetest.Node
	nets   *defined
	srv    *networks.Server
	mux    *dockerhttp.Mux
	events []string
	names  int // how often names were made to resolve
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, node: enginetest.New(t), nets: &defined{}}
	r.srv = &networks.Server{
		Networks: r.nets, Engine: r.node.As("docker"), Others: []*engine.Client{r.node.As("cli")}, Names: func(context.Context) error { r.names++; return nil },
		Container: func(ctx context.Context, ref string) (core.Container, error) {
			list, err := r.node.As("docker").Containers(ctx, core.Filter{})
			for _, c := range list {
				if string(c.Key) == ref {
					return c, nil
				}
			}
			return core.Container{}, errdefs.ErrNotFound.WithMessage("No such container: " + ref + fmt.Sprint(err))
		},
		Mode: func(c core.Container) string {
			if c.Key == "alone" {
				return networks.None
			}
			return ""
		},
		Publish: func(typ, action, _ string, attributes map[string]string) {
			if c := attributes["container"]; c != "" {
				attributes["container"] = "C"
			}
			r.events = append(r.events, fmt.Sprint(typ, " ", action, " ", attributes))
		},
		Default: networks.Default{Interface: "no-such-link", MTU: 1400, Masquerade: true},
	}
	r.mux = &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}
	r.srv.Routes(r.mux)
	return r
}

func (r *rig) ask(method, path, body string) (int, string) {
	r.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, req)
	return w.Code, strings.TrimSpace(w.Body.String())
}

// want asserts status and a part of the answer.
func (r *rig) want(method, path, body string, status int, part string) string {
	r.t.Helper()
	code, got := r.ask(method, path, body)
	if code != status || !strings.Contains(got, part) {
		r.t.Errorf("%s %s %s: %d %s, want %d %s", method, path, body, code, got, status, part)
	}
	return got
}

func (r *rig) inspect(ref string) (doc dockertypes.Network) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.want("GET", "/networks/"+ref, "", 200, "")), &doc); err != nil {
		r.t.Error(err)
	}
	return doc
}

// run starts a container with a network of its own.
func (r *rig) run(owner core.Owner, name string, start bool) core.Container {
	r.t.Helper()
	image := r.node.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := r.node.Pod(owner, core.Key(name))
	if start {
		return r.node.Running(sb, core.Key(name), image, "sleep")
	}
	return r.node.Container(sb, core.Key(name), image, "sleep")
}

func TestTheNetworksThatAlwaysExist(t *testing.T) {
	r := newRig(t)
	var list []dockertypes.Network
	for _, path := range []string{"/networks", "/networks/", "/v1.24/networks"} {
		if err := json.Unmarshal([]byte(r.want("GET", path, "", 200, `"Labels":{}`)), &list); err != nil || len(list) != 3 {
			t.Errorf("%s: %v %v", path, list, err)
		}
	}
	for i, name := range []string{"bridge", "host", "none"} {
		doc := r.inspect(name)
		if doc.Name != name || doc.ID != list[i].ID || len(doc.ID) != 64 || r.inspect(doc.ID[:12]).Name != name {
			t.Errorf("%s: %+v", name, doc)
		}
		r.want("DELETE", "/networks/"+name, "", 403, name+" is a pre-defined network and cannot be removed")
		r.want("POST", "/networks/create", `{"Name":"`+name+`"}`, 403, "operation is not permitted on predefined "+name+" network")
	}
	if doc := r.inspect("bridge"); doc.IPAM.Config[0].Subnet != "10.0.0.0/16" || doc.IPAM.Config[0].Gateway != "10.0.0.1" || doc.Options["com.docker.network.driver.mtu"] != "1400" {
		t.Errorf("%+v", doc)
	}
	r.want("GET", "/networks/nowhere", "", 404, `{"message":"network nowhere not found"}`)
	r.want("GET", "/networks/bridge?scope=swarm", "", 404, "not found")
	r.want("GET", "/networks/bridge?verbose=maybe", "", 400, "invalid value for verbose")
}

func TestCreate(t *testing.T) {
	r := newRig(t)
	made := r.want("POST", "/networks/create", `{"Name":"app","CheckDuplicate":true,"Attachable":true,"EnableIPv6":true,"Labels":{"a":"b"},"Options":{
		"com.docker.network.bridge.name":"br0","com.docker.network.bridge.enable_icc":"false","com.docker.network.bridge.enable_ip_masquerade":"0",
		"com.docker.network.bridge.host_binding_ipv4":"127.0.0.1","com.docker.network.driver.mtu":"1300","com.docker.network.bridge.gateway_mode_ipv4":"nat","mine":"x"},
		"IPAM":{"Driver":"default","Options":{},"Config":[{"Subnet":"10.9.0.0/16","IPRange":"10.9.1.0/24","Gateway":"10.9.0.9","AuxiliaryAddresses":{"router":"10.9.0.7"}},{"Subnet":"fd00::/64"}]}}`,
		201, `"Warning":""`)
	def := r.nets.list[0]
	want := core.NetworkDefinition{
		Name: "app", Labels: map[string]string{"a": "b"}, IPv6: true, MTU: 1300, Interface: "br0", Isolated: true, NoMasquerade: true,
		HostIP: netip.MustParseAddr("127.0.0.1"), Attachable: true, Created: def.Created, Options: def.Options, IPAMOptions: map[string]string{},
		Subnets: []core.Subnet{{
			Range: netip.MustParsePrefix("10.9.0.0/16"), Pool: netip.MustParsePrefix("10.9.1.0/24"), Gateway: netip.MustParseAddr("10.9.0.9"),
			Reserved: map[string]netip.Addr{"router": netip.MustParseAddr("10.9.0.7")},
		}, {Range: netip.MustParsePrefix("fd00::/64")}},
	}
	if fmt.Sprintf("%+v", def) != fmt.Sprintf("%+v", want) || len(def.Options) != 7 {
		t.Errorf("defined\n%+v, want\n%+v", def, want)
	}
	doc := r.inspect("app")
	if !strings.Contains(made, doc.ID) || !doc.EnableIPv6 || !doc.EnableIPv4 || !doc.Attachable || doc.Options["mine"] != "x" || len(doc.IPAM.Config) != 2 || doc.Driver != "bridge" {
		t.Errorf("%s, %+v", made, doc)
	}
	if c := doc.IPAM.Config[0]; c.IPRange != "10.9.1.0/24" || c.Gateway != "10.9.0.9" || c.AuxAddress["router"] != "10.9.0.7" {
		t.Errorf("%+v", c)
	}
	// Ranges of IPv6 have no effect without EnableIPv6, and EnableIPv4 is of 1.48.
	r.want("POST", "/v1.47/networks/create", `{"Name":"four","EnableIPv4":false,"IPAM":{"Config":[{"Subnet":"fd01::/64"}]}}`, 201, "")
	r.want("POST", "/networks/create", `{"Name":"six","EnableIPv4":false,"Options":{"com.docker.network.enable_ipv6":"true"}}`, 201, "")
	if four, six := r.nets.list[1], r.nets.list[2]; four.NoIPv4 || four.Subnets[0].Range.Addr().Is6() || !six.NoIPv4 || !six.IPv6 {
		t.Errorf("%+v, %+v", four, six)
	}
	if got := r.want("GET", "/networks/six", "", 200, ""); !strings.Contains(got, `"Options":{"com.docker.network.enable_ipv6":"true"},"Labels":{}`) || !strings.Contains(got, `"IPAM":{"Driver":"default","Options":null,`) {
		t.Error(got)
	}
	if want := "network create map[name:app type:bridge]"; len(r.events) != 3 || r.events[0] != want {
		t.Errorf("events %q", r.events)
	}
}

func TestRefusedCreates(t *testing.T) {
	r := newRig(t)
	r.want("POST", "/networks/create", `{"Name":"app","IPAM":{"Config":[{"Subnet":"10.9.0.0/16"}]}}`, 201, "")
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`{"Name":"app"}`:                                            {409, "network with name app already exists"},
		`{"Name":" "}`:                                              {400, "name is empty"},
		`{"Name":"a/b"}`:                                            {400, "invalid argument"},
		`{"Name":"x","Driver":"macvlan"}`:                           {404, `plugin \"macvlan\" not found`},
		`{"Name":"x","Driver":"overlay"}`:                           {403, "This node is not a swarm manager."},
		`{"Name":"x","Scope":"swarm"}`:                              {503, "This node is not a swarm manager."},
		`{"Name":"x","Driver":"host"}`:                              {403, `only one instance of \"host\" network is allowed`},
		`{"Name":"x","Ingress":true}`:                               {403, "Ingress network"},
		`{"Name":"x","ConfigOnly":true}`:                            {400, "configuration-only"},
		`{"Name":"x","ConfigFrom":{"Network":"y"}}`:                 {404, `configuration network \"y\" does not exist`},
		`{"Name":"x","IPAM":{"Driver":"mine"}}`:                     {404, `plugin \"mine\" not found`},
		`{"Name":"x","IPAM":{"Config":[{"Gateway":"1"}]}}`:          {400, `invalid network config:\ninvalid subnet : invalid CIDR block notation`},
		`{"Name":"x","IPAM":{"Config":[{"Subnet":"10.9.1.0/24"}]}}`: {403, "invalid pool request: Pool overlaps with other one on this address space"},
		`{"Name":"x","IPAM":{"Config":[{"Subnet":"10.8.0.1/16","Gateway":"10.7.0.1","IPRange":"10.8.0.0/8","AuxiliaryAddresses":{"a":"fd00::1","b":"?"}}]}}`: {
			400, `invalid network config:\n* invalid subnet 10.8.0.1/16: it should be 10.8.0.0/16\n* invalid ip-range 10.8.0.0/8: CIDR block is bigger than its parent subnet 10.8.0.1/16\n` +
				`* invalid ip-range 10.8.0.0/8: it should be 10.0.0.0/8\n* invalid gateway 10.7.0.1: parent subnet 10.8.0.1/16 doesn't contain this address\n` +
				`* invalid auxiliary address a: parent subnet is an IPv4 block\n* invalid auxiliary address b: invalid address`,
		},
		`{"Name":"x","Options":{"com.docker.network.bridge.enable_icc":"maybe"}}`:         {400, `failed to parse com.docker.network.bridge.enable_icc value: maybe (`},
		`{"Name":"x","Options":{"com.docker.network.driver.mtu":"big"}}`:                  {400, "failed to parse com.docker.network.driver.mtu value: big ("},
		`{"Name":"x","Options":{"com.docker.network.bridge.host_binding_ipv4":"::1"}}`:    {400, "not an IPv4 address"},
		`{"Name":"x","Options":{"com.docker.network.bridge.gateway_mode_ipv4":"routed"}}`: {400, `\"routed\" is not supported, only nat`},
		`{"Name":"x","Options":{"com.docker.network.bridge.inhibit_ipv4":"true"}}`:        {400, "not supported"},
		`{"Name":"x","Options":{"com.docker.network.container_iface_prefix":"net"}}`:      {400, "only eth"},
		`{"Name":"x"`: {400, "invalid JSON"},
	} {
		r.want("POST", "/networks/create", body, want.status, want.text)
	}
	if len(r.nets.list) != 1 || len(r.events) != 1 {
		t.Errorf("%v, %v", r.nets.list, r.events)
	}
}

func TestFilters(t *testing.T) {
	r := newRig(t)
	r.want("POST", "/networks/create", `{"Name":"app","Labels":{"a":"b"}}`, 201, "")
	r.want("POST", "/networks/create", `{"Name":"other"}`, 201, "")
	id := r.inspect("app").ID
	for filters, want := range map[string]string{
		`{"name":["app"]}`: "app", `{"driver":["null"]}`: "none", `{"id":["` + id[:8] + `"]}`: "app", `{"label":["a"]}`: "app", `{"label":["a=c"]}`: "", `{"scope":["local"],"type":["custom"]}`: "app other",
		`{"type":{"builtin":true}}`: "bridge host none", `{"dangling":["true"]}`: "app other", `{"dangling":["false"]}`: "bridge host none", `{"scope":["swarm"]}`: "",
	} {
		var list []dockertypes.Network
		if err := json.Unmarshal([]byte(r.want("GET", "/networks?filters="+url.QueryEscape(filters), "", 200, "[")), &list); err != nil {
			t.Error(err)
		}
		var names []string
		for _, n := range list {
			names = append(names, n.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s, want %s", filters, got, want)
		}
	}
	for _, filters := range []string{`{"color":["red"]}`, `{"type":["odd"]}`, `{"dangling":["perhaps"]}`, `[`} {
		r.want("GET", "/networks?filters="+url.QueryEscape(filters), "", 400, "invalid filter")
	}
}

func TestConnectAndDisconnect(t *testing.T) {
	r := newRig(t)
	r.want("POST", "/networks/create", `{"Name":"app","IPAM":{"Config":[{"Subnet":"172.20.0.0/16"}]}}`, 201, "")
	web, stopped := r.run("docker", "web", true), r.run("docker", "stopped", false)
	r.run("cli", "typed", true)
	r.run("docker", "alone", true)
	if doc := r.inspect("bridge"); len(doc.Containers) != 3 || doc.Containers[string(web.ID)].Name != "web" || doc.Containers[string(web.ID)].IPv4Address == "" {
		t.Errorf("on bridge: %+v", doc.Containers)
	}
	r.want("POST", "/networks/app/connect", `{"Container":"web","EndpointConfig":{"Aliases":["db"],"IPAMConfig":{"IPv4Address":"172.20.0.9"},"MacAddress":"02:42:ac:11:00:02"}}`, 200, "")
	sb, err := r.node.As("docker").Sandbox(t.Context(), web.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if a := sb.Config.Network.Attach[1]; a.Network != "app" || a.Names[0] != "db" || a.Addrs[0].String() != "172.20.0.9/32" || a.MAC != "" {
		t.Errorf("attached %+v", a)
	}
	r.want("POST", "/networks/app/connect", `{"Container":"web"}`, 403, "endpoint with name web already exists in network app")
	r.want("POST", "/networks/app/connect", `{"Container":"stopped"}`, 200, "")
	r.want("POST", "/networks/app/connect", `{"Container":"stopped"}`, 200, "")
	doc := r.inspect("app")
	if e := doc.Containers[string(web.ID)]; len(doc.Containers) != 1 || e.IPv4Address != "172.20.0.9/32" || e.EndpointID != view.EndpointID(web.ID, "app") {
		t.Errorf("on app: %+v", doc.Containers)
	}
	if r.want("GET", "/v1.27/networks?filters=%7B%22name%22%3A%5B%22app%22%5D%7D", "", 200, string(web.ID)); r.names != 2 {
		t.Errorf("names were published %d times", r.names)
	}
	r.want("DELETE", "/networks/app", "", 403, `error while removing network: network app has active endpoints (name:\"web\" id:\"`)
	for body, want := range map[string]string{
		`{"Container":"web","EndpointConfig":{"IPAMConfig":{"IPv4Address":"172.21.0.9"}}}`:                                               "no configured subnet or ip-range contain the IP address 172.21.0.9",
		`{"Container":"web","EndpointConfig":{"IPAMConfig":{"IPv4Address":"fd00::1","IPv6Address":"x","LinkLocalIPs":["169.254.1.1"]}}}`: `invalid endpoint settings:\n* invalid IPv4 address: fd00::1\n* no configured subnet or ip-range contain the IP address fd00::1\n* invalid IPv6 address: x\n* user specified IP address is supported only when connecting to networks with user configured subnets\n* link-local`,
		`{"Container":"web","EndpointConfig":{"MacAddress":"x"}}`:                                                                        "invalid MAC address x",
		`{"Container":"web","EndpointConfig":{"Links":["db"]}}`:                                                                          "links cannot be added",
		`{"Container":"web","EndpointConfig":{"GwPriority":1}}`:                                                                          "gw-priority 1",
		`{"Container":"web","EndpointConfig":{"DriverOpts":{"com.docker.network.endpoint.sysctls":"a"}}}`:                                "kernel parameters",
		`{"Container":"alone"}`: "one of the networks in private (none) mode",
	} {
		r.want("POST", "/networks/app/connect", body, 400, want)
	}
	r.want("POST", "/networks/bridge/connect", `{"Container":"web","EndpointConfig":{"Aliases":["a"],"IPAMConfig":{"IPv4Address":"10.0.0.9"}}}`, 400, `* user specified IP address is supported on user defined networks only\n* network-scoped alias`)
	r.want("POST", "/networks/host/connect", `{"Container":"web"}`, 400, "cannot connect container to host network")
	r.want("POST", "/networks/none/connect", `{"Container":"web"}`, 400, "private (none) mode")
	r.want("POST", "/networks/nowhere/connect", `{"Container":"web"}`, 404, "network nowhere not found")
	r.want("POST", "/networks/app/connect", `{"Container":"gone"}`, 404, "No such container: gone")
	r.want("POST", "/networks/app/disconnect", `{"Container":"gone","Force":true}`, 404, "endpoint gone not found")
	r.want("POST", "/networks/nowhere/disconnect", `{"Container":"gone","Force":true}`, 404, "network nowhere not found")
	r.want("POST", "/networks/app/disconnect", "", 400, `invalid name or ID supplied: \"\"`)
	r.want("POST", "/networks/app/disconnect", `{"Container":"web"}`, 200, "")
	r.want("POST", "/networks/app/disconnect", `{"Container":"web"}`, 500, "container "+string(web.ID)+" is not connected to network app")
	// As Watchtower does it: off its only network, and back.
	r.want("POST", "/networks/bridge/disconnect", `{"Container":"stopped"}`, 200, "")
	r.want("POST", "/networks/app/disconnect", `{"Container":"stopped"}`, 200, "")
	r.want("POST", "/networks/bridge/connect", `{"Container":"stopped"}`, 200, "")
	if err := r.node.As("docker").StartContainer(t.Context(), stopped.ID); err != nil {
		t.Error(err)
	}
	r.want("POST", "/networks/app/connect", `{"Container":"stopped","EndpointConfig":{"IPAMConfig":{"IPv4Address":"172.20.0.9"}}}`, 200, "")
	r.want("POST", "/networks/app/connect", `{"Container":"web","EndpointConfig":{"IPAMConfig":{"IPv4Address":"172.20.0.9"}}}`, 403, "Address already in use")
	if want := []string{
		"network create map[name:app type:bridge]", "network connect map[container:C name:app type:bridge]", "network disconnect map[container:C name:app type:bridge]",
		"network connect map[container:C name:app type:bridge]",
	}; !slices.Equal(r.events, want) {
		t.Errorf("events %q", r.events)
	}
}

func TestRemoveAndPrune(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"app", "back", "free", "labeled", "busy"} {
		labels := ""
		if name == "labeled" {
			labels = `,"Labels":{"keep":""}`
		}
		r.want("POST", "/networks/create", `{"Name":"`+name+`"`+labels+`}`, 201, "")
	}
	r.nets.busy = "busy"
	r.run("docker", "web", true)
	typed := r.run("cli", "typed", false)
	r.want("POST", "/networks/app/connect", `{"Container":"web"}`, 200, "")
	if err := r.node.As("cli").Attachments.Attach(t.Context(), typed.Sandbox, core.Attachment{Network: "back"}); err != nil {
		t.Fatal(err)
	}
	r.want("POST", "/networks/prune?filters="+url.QueryEscape(`{"until":["1h"]}`), "", 200, `{"NetworksDeleted":null}`)
	r.want("POST", "/networks/prune?filters="+url.QueryEscape(`{"until":["1h","2h"]}`), "", 400, "more than one until")
	r.want("POST", "/networks/prune?filters="+url.QueryEscape(`{"dangling":["1"]}`), "", 400, "invalid filter")
	r.want("POST", "/networks/prune?filters="+url.QueryEscape(`{"label!":["keep"]}`), "", 200, `{"NetworksDeleted":["free"]}`)
	r.want("POST", "/networks/prune", "", 200, `{"NetworksDeleted":["labeled"]}`)
	r.want("DELETE", "/networks/busy", "", 403, "active endpoints")
	r.nets.busy = ""
	r.want("DELETE", "/networks/"+r.inspect("busy").ID[:10], "", 204, "")
	r.want("DELETE", "/networks/busy", "", 404, "network busy not found")
	want := []string{"network prune map[reclaimed:0]", "network destroy map[name:free type:bridge]", "network prune map[reclaimed:0]", "network destroy map[name:labeled type:bridge]", "network prune map[reclaimed:0]", "network destroy map[name:busy type:bridge]"}
	if got := r.events[6:]; !slices.Equal(got, want) {
		t.Errorf("events %q", got)
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("app", `{"Name":"app","IPAM":{"Config":[{"Subnet":"10.0.0.0/8","IPRange":"10.1.0.0/16","Gateway":"10.0.0.1","AuxiliaryAddresses":{"a":"10.0.0.2"}}]},"Options":{"com.docker.network.driver.mtu":"1"}}`)
	f.Add("bridge", `{"Container":"web","EndpointConfig":{"IPAMConfig":{"IPv4Address":"10.0.0.9"},"Aliases":["a"]}}`)
	f.Fuzz(func(t *testing.T, ref, body string) {
		nets := &defined{}
		n := enginetest.New(t)
		s := &networks.Server{
			Networks: nets, Engine: n.As("docker"), Publish: func(string, string, string, map[string]string) {},
			Container: func(context.Context, string) (core.Container, error) { return core.Container{}, errdefs.ErrNotFound },
		}
		m := &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}
		s.Routes(m)
		for _, path := range []string{"/networks/create", "/networks/bridge/connect"} {
			req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			m.ServeHTTP(w, req)
			if w.Code == 500 {
				t.Errorf("%s: %s", path, w.Body)
			}
		}
		for _, def := range nets.list {
			for _, sub := range def.Subnets {
				if sub.Gateway.IsValid() && !sub.Range.Contains(sub.Gateway) || sub.Pool.IsValid() && !sub.Range.Overlaps(sub.Pool) {
					t.Errorf("%+v", sub)
				}
			}
		}
		var e dockertypes.Endpoint
		if json.Unmarshal([]byte(body), &e) == nil {
			_, _ = networks.Attachment(networks.Network{Name: ref}, &e)
		}
	})
}
