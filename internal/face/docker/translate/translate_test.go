package translate

import (
	"encoding/json"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
)

func node(version string) Node { return Node{API: dockerhttp.MustParse(version)} }

// busybox is an image with everything that a container gets from it.
func busybox() core.Image {
	img := core.Image{Health: &core.HealthCheck{Test: []string{"CMD", "true"}}}
	img.Config.Config = ocispec.ImageConfig{
		User: "web", Env: []string{"PATH=/bin", "A=image"}, Entrypoint: []string{"/entry", "-x"}, Cmd: []string{"serve"}, WorkingDir: "/srv",
		ExposedPorts: map[string]struct{}{"80/tcp": {}}, Volumes: map[string]struct{}{"/data": {}}, Labels: map[string]string{"of": "image"}, StopSignal: "SIGINT",
	}
	return img
}

// request completes a body and returns the node's request.
func request(t *testing.T, version, body string) (*Create, Request, error) {
	t.Helper()
	c, err := Read([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(node(version)); err != nil {
		return c, Request{}, err
	}
	c.Merge(busybox())
	r, err := c.Request("web", func(ref string) (string, error) { return strings.TrimPrefix(ref, "id-of-"), nil })
	return c, r, err
}

func TestTheImageCompletesARequest(t *testing.T) {
	c, r, err := request(t, "1.51", `{"Image":"busybox","Env":["A=own"]}`)
	if err != nil {
		t.Fatal(err)
	}
	if r.GetUser() != "web" || r.GetWorkdir() != "/srv" || r.GetEntrypoint() != "/entry" || strings.Join(r.GetCommand(), " ") != "-x serve" || r.GetStopSignal() != "SIGINT" {
		t.Errorf("%v", r.CreateRequest)
	}
	if c.Labels["of"] != "image" || c.Healthcheck == nil || len(c.ExposedPorts) != 1 || len(r.Mounts.List) != 1 || !r.Mounts.List[0].GetAnonymous() {
		t.Errorf("%+v %v", c.Config, r.Mounts)
	}
	_, r, err = request(t, "1.51", `{"Image":"busybox","Entrypoint":["sh","-c"],"Cmd":["echo"]}`)
	if err != nil || r.GetEntrypoint() != "sh" || strings.Join(r.GetCommand(), " ") != "-c echo" {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
	if _, r, err = request(t, "1.51", `{"Image":"busybox","Entrypoint":[""],"Cmd":["echo"]}`); err != nil || !r.GetClearEntrypoint() || strings.Join(r.GetCommand(), " ") != "echo" {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
	if _, r, err = request(t, "1.51", `{"Image":"busybox","Cmd":"date"}`); err != nil || strings.Join(r.GetCommand(), " ") != "-x date" {
		t.Errorf("a command in one word: %v, %v", r.CreateRequest, err)
	}
}

// TestTheLogDriverThatIsNamed: a request without one leaves it to the node, and inspect shows docker's default.
func TestTheLogDriverThatIsNamed(t *testing.T) {
	for given, want := range map[string]string{"": "", "json-file": "json-file", "local": "local", "none": "", "journald": "journald"} {
		c, r, err := request(t, "1.51", `{"Image":"busybox","Cmd":["true"],"HostConfig":{"LogConfig":{"Type":"`+given+`"}}}`)
		if err != nil {
			t.Fatal(err)
		}
		shown := given
		if given == "" {
			shown = "json-file"
		}
		if r.GetLogDriver() != want || c.HostConfig.LogConfig.Type != shown || r.GetNoLog() != (given == "none") {
			t.Errorf("%q: driver %q, shown %q", given, r.GetLogDriver(), c.HostConfig.LogConfig.Type)
		}
	}
}

func TestNetworksOfARequest(t *testing.T) {
	_, r, err := request(t, "1.51", `{"Image":"busybox","HostConfig":{"NetworkMode":"app"},"NetworkingConfig":{"EndpointsConfig":{
		"id-of-app":{"Aliases":["web","w"],"IPAMConfig":{"IPv4Address":"10.1.0.5"}},"more":{"Aliases":["m"]}}}}`)
	if err != nil || r.GetNetwork() != "app" || r.GetIp() != "10.1.0.5" || len(r.GetNetworkAliases()) != 2 {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
	if f := r.GetFurtherNetworks(); len(f) != 1 || f[0].GetNetwork() != "more" || f[0].GetAliases()[0] != "m" {
		t.Errorf("%v", f)
	}
	// testcontainers names a network and no mode: the container is not on the default network.
	if _, r, err = request(t, "1.51", `{"Image":"busybox","NetworkingConfig":{"EndpointsConfig":{"more":{},"app":{"Aliases":["a"]}}}}`); err != nil ||
		r.GetNetwork() != "app" || len(r.GetNetworkAliases()) != 1 || len(r.GetFurtherNetworks()) != 1 {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
	_, r, err = request(t, "1.51", `{"Image":"busybox","HostConfig":{"NetworkMode":"app"},"NetworkingConfig":{"EndpointsConfig":{"app":{"GwPriority":10},"out":{"GwPriority":100,"Aliases":["o"]}}}}`)
	if f := r.GetFurtherNetworks(); err != nil || r.GetNetwork() != "out" || strings.Join(r.GetNetworkAliases(), " ") != "o" || len(f) != 1 || f[0].GetNetwork() != "app" {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
	// The command line names the default network twice, each time by another name.
	if _, r, err = request(t, "1.51", `{"Image":"busybox","HostConfig":{"NetworkMode":"default"},"NetworkingConfig":{"EndpointsConfig":{"default":{"IPAMConfig":null}}}}`); err != nil || r.GetNetwork() != "bridge" || len(r.GetFurtherNetworks()) != 0 {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
	c, r, err := request(t, "1.51", `{"Image":"busybox","HostConfig":{"NetworkMode":"container:other"}}`)
	if err != nil || r.GetNetwork() != "container:other" || len(c.ExposedPorts) != 0 {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
}

func TestMountsOfARequest(t *testing.T) {
	_, r, err := request(t, "1.51", `{"Image":"busybox","HostConfig":{"Binds":["/tmp/x:/a:ro","named:/b:z,nocopy"],
		"Mounts":[{"Type":"volume","Target":"/c","VolumeOptions":{"Labels":{"k":"v"}}},{"Type":"tmpfs","Target":"/d","TmpfsOptions":{"SizeBytes":1024,"Mode":511}},{"Type":"bind","Source":"/etc","Target":"/e","BindOptions":{"Propagation":"rslave"}}],
		"Tmpfs":{"/f":"size=1m,noexec"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, m := range r.Mounts.List {
		list = append(list, m.GetSource()+":"+m.GetTarget())
	}
	if got := strings.Join(list, " "); got != "/tmp/x:/a named:/b :/c /etc:/e :/data" {
		t.Errorf("mounts %s", got)
	}
	if !r.Mounts.List[0].GetReadOnly() || !r.Mounts.List[1].GetNoCopy() || r.Mounts.List[3].GetPropagation() != "rslave" || r.Mounts.Volumes["/c"].Labels["k"] != "v" {
		t.Errorf("%v", r.Mounts)
	}
	if len(r.Mounts.Tmpfs) != 2 || strings.Join(r.Mounts.Make, " ") != "/tmp/x" {
		t.Errorf("%v %v", r.Mounts.Tmpfs, r.Mounts.Make)
	}
}

// TestOlderVersions shows defaults that depend on the version of a request.
func TestOlderVersions(t *testing.T) {
	for version, want := range map[string]string{"1.51": "private", "1.39": "shareable"} {
		if c, _, err := request(t, version, `{"Image":"busybox"}`); err != nil || c.HostConfig.IpcMode != want {
			t.Errorf("%s: %s, %v", version, c.HostConfig.IpcMode, err)
		}
	}
	c, r, err := request(t, "1.40", `{"Image":"busybox","MacAddress":"02:00:00:00:00:01"}`)
	if err != nil || r.GetMac() != "02:00:00:00:00:01" {
		t.Errorf("%v %v", r.GetMac(), err)
	}
	_ = c
}

// TestWordsOfRefusals compares errors that clients or suites match.
func TestWordsOfRefusals(t *testing.T) {
	for body, want := range map[string]string{
		`"Env":["=foo"]`:                    "invalid environment variable: =foo",
		`"HostConfig":{"Tmpfs":{"rel":""}}`: "mount path must be absolute",
		`"HostConfig":{"Tmpfs":{"//":""}}`:  "destination can't be '/'",
		`"HostConfig":{"Mounts":[{"Type":"volume","Source":"v","Target":"/x","VolumeOptions":{"Subpath":"/etc"}}]}`:             "subpath must be a relative path",
		`"HostConfig":{"Mounts":[{"Type":"bind","Source":"/etc","Target":"/x","BindOptions":{"ReadOnlyForceRecursive":true}}]}`: "needs ReadOnly",
		`"HostConfig":{"Mounts":[{"Type":"image","Target":"/x"}]}`:                                                              "Source must not be empty",
		`"HostConfig":{"Mounts":[{"Type":"image","Source":"box","Target":"/x","ImageOptions":{"Subpath":"../x"}}]}`:             "subpath must be a relative path",
		`"HostConfig":{"CpuShares":-1}`:         "invalid CPU shares (-1)",
		`"HostConfig":{"Annotations":{"":"a"}}`: "invalid Annotations",
		`"HostConfig":{"Mounts":[{"Type":"volume","Target":"/x","VolumeOptions":{"DriverConfig":{"Name":"far"}}}]}`: `plugin "far" not found`,
	} {
		if _, _, err := request(t, "1.51", `{"Image":"busybox",`+body+`}`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

// TestFormsOfARequest sends links as inspect shows them, a working directory with a slash at its end, and the size of a terminal.
func TestFormsOfARequest(t *testing.T) {
	c, r, err := request(t, "1.51", `{"Image":"busybox","Tty":true,"WorkingDir":"/tmp/","HostConfig":{"ConsoleSize":[50,132],"Links":["/db:/web/base","cache:/c","plain"]}}`)
	if err != nil || c.WorkingDir != "/tmp" || r.GetSize().GetRows() != 50 || r.GetSize().GetCols() != 132 || strings.Join(r.GetLinks(), " ") != "db:base cache:c plain" {
		t.Errorf("%v, %v", r.CreateRequest, err)
	}
}

// TestMountsBelowBinds compares the mount options of recursive and other binds.
func TestMountsBelowBinds(t *testing.T) {
	body := `{"Image":"busybox","HostConfig":{"Binds":["/etc:/a:ro","/etc:/b:ro,rslave","/etc:/c"],"Mounts":[{"Type":"bind","Source":"/etc","Target":"/d","ReadOnly":true},
		{"Type":"bind","Source":"/etc","Target":"/e","ReadOnly":true,"BindOptions":{"NonRecursive":true}},{"Type":"bind","Source":"/etc","Target":"/f","ReadOnly":true,"BindOptions":{"ReadOnlyNonRecursive":true}}]}}`
	for version, want := range map[string]string{
		"1.51": "/a:rbind,ro,rro /b:rbind,ro /c:rbind,rw /d:rbind,ro,rro /e:bind,ro /f:rbind,ro",
		"1.43": "/a:rbind,ro /b:rbind,ro /c:rbind,rw /d:rbind,ro /e:bind,ro /f:rbind,ro",
	} {
		_, r, err := request(t, version, body)
		if err != nil {
			t.Fatal(err)
		}
		spec := &specs.Spec{}
		for _, m := range r.Mounts.List[:6] {
			options := []string{"rbind", "rw"}
			if m.GetReadOnly() {
				options[1] = "ro"
			}
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: m.GetTarget(), Options: options})
		}
		r.Spec(spec)
		var list []string
		for _, m := range spec.Mounts {
			list = append(list, m.Destination+":"+strings.Join(m.Options, ","))
		}
		if got := strings.Join(list, " "); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

func TestUpdates(t *testing.T) {
	c, _, err := request(t, "1.51", `{"Image":"busybox","HostConfig":{"Memory":67108864}}`)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(-1)
	c.Update(&dockertypes.Resources{Memory: 100 << 20, PidsLimit: &n}, dockertypes.RestartPolicy{Name: "always"})
	if c.HostConfig.Memory != 100<<20 || c.HostConfig.PidsLimit == nil || *c.HostConfig.PidsLimit != 0 || c.HostConfig.RestartPolicy.Name != "always" {
		t.Errorf("%+v", c.HostConfig)
	}
	req, err := Update(&dockertypes.Resources{PidsLimit: &n}, dockertypes.RestartPolicy{Name: "on-failure", MaximumRetryCount: 3})
	if err != nil || req.GetPids() != -1 || req.GetRestart() != "on-failure:3" {
		t.Errorf("%v, %v", req, err)
	}
}

// FuzzCreate completes and translates bodies. A completed request stays the same when it is completed once more: inspect shows it, and
// clients send it back.
func FuzzCreate(f *testing.F) {
	f.Add([]byte(`{"Image":"busybox","Cmd":["sh"],"HostConfig":{"Binds":["/a:/b:ro"],"PortBindings":{"80":[{"HostPort":"8000-8010"}]},"Memory":67108864,"SecurityOpt":["no-new-privileges"]}}`))
	f.Add([]byte(`{"Image":"x","Entrypoint":"a","ExposedPorts":{"80-90/udp":{}},"Volumes":{"/v":{}},"NetworkingConfig":{"EndpointsConfig":{"default":null}},"HostConfig":{"NetworkMode":"container:y"}}`))
	f.Add([]byte(`{"Image":"x","HostConfig":{"Mounts":[{"Type":"tmpfs","Target":"/t","TmpfsOptions":{"Options":[["a"],["b","c"],[]]}}],"LogConfig":{"Type":"local","Config":{"max-size":"10m"}},"Ulimits":[null]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Read(data)
		if err != nil || c.Complete(node("1.51")) != nil {
			return
		}
		first, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Read(first)
		if err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		if err := again.Complete(node("1.51")); err != nil {
			t.Fatalf("%s is refused: %v", first, err)
		}
		if second, err := json.Marshal(again); err != nil || string(second) != string(first) {
			t.Errorf("%s\nbecomes\n%s, %v", first, second, err)
		}
		c.Merge(busybox())
		_, _ = c.Request("web", func(ref string) (string, error) { return ref, nil })
	})
}
