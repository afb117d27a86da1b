package present

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func TestTemplates(t *testing.T) {
	rows := []Row{
		Row{"Names": "web", "State": "running", "Ports": "80<->8080"}.WithLabels(map[string]string{"tier": "front", "a": "b"}),
		Row{"Names": "database", "State": "exited", "Ports": ""}.WithLabels(nil),
	}
	for format, want := range map[string]string{
		`{{.Names}}`:                              "web\ndatabase\n",
		`{{.Names}}\t{{upper .State}}`:            "web\tRUNNING\ndatabase\tEXITED\n",
		`{{.Label "tier"}}|{{.Labels}}`:           "front|a=b,tier=front\n|\n",
		`table {{.Names}}\t{{.State}}`:            "NAMES      STATE\nweb        running\ndatabase   exited\n",
		`table {{.Names}}\t{{.Label "org.tier"}}`: "NAMES      tier\nweb        \ndatabase   \n",
		`{{json .Ports}}`:                         "\"80<->8080\"\n\"\"\n",
		`{{truncate .Names 3}}{{pad "x" 1 1}}`:    "web x \ndat x \n",
		`{{join (split .Names "a") "-"}}`:         "web\nd-t-b-se\n",
		`{{.Names}}\t{{"\t\n" | len}}`:            "web\t2\ndatabase\t2\n",
		`json`:                                    `{"Labels":"a=b,tier=front","Names":"web","Ports":"80<->8080","State":"running"}` + "\n" + `{"Labels":"","Names":"database","Ports":"","State":"exited"}` + "\n",
	} {
		f, err := ParseFormat(format)
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		var out bytes.Buffer
		if err := f.Rows(&out, nil, rows); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", format, out.String(), err, want)
		}
	}
	for _, format := range []string{`{{.Names`, `table`, `{{nofunc .Names}}`} {
		if _, err := ParseFormat(format); err == nil {
			t.Errorf("%q is taken", format)
		}
	}
	f, err := ParseFormat(`{{.Nmaes}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Rows(&bytes.Buffer{}, nil, rows); err == nil || !strings.Contains(err.Error(), "Nmaes") {
		t.Errorf("a member that does not exist: %v", err)
	}
	if f, err := ParseFormat(`x {{if .Size}}y{{end}}`); err != nil || !f.Uses("Size") || f.Uses("Ports") {
		t.Errorf("what a template uses: %v", err)
	}
}

func TestFilters(t *testing.T) {
	f, err := ParseFilters([]string{"status=a", "status=b", "label=x=1", "label=y", "label!=z"}, "status", "label", "label!", "name")
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if got := f.Any("status", func(v string) bool { return v == status }); got != want {
			t.Errorf("status %s: %v", status, got)
		}
	}
	if !f.Any("name", func(string) bool { return false }) {
		t.Error("a filter that is not given keeps something out")
	}
	for _, c := range []struct {
		labels map[string]string
		want   bool
	}{
		{map[string]string{"x": "1", "y": ""}, true},
		{map[string]string{"x": "2", "y": ""}, false},
		{map[string]string{"x": "1"}, false},
		{map[string]string{"x": "1", "y": "", "z": "1"}, false},
	} {
		if got := f.Labels(c.labels); got != c.want {
			t.Errorf("%v: %v", c.labels, got)
		}
	}
	for _, wrong := range []string{"status", "status=", "=x", "other=1"} {
		if _, err := ParseFilters([]string{wrong}, "status"); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func TestImage(t *testing.T) {
	const id = "sha256:0123456789abcdef"
	for want, fits := range map[string]bool{
		"redis": true, "redis:7": true, "library/redis": true, "docker.io/library/redis:7": true, "0123": true, "sha256:0123456": true,
		"edis": false, "redis:8": false, "012": false, "redis:": false,
	} {
		if got := Image(want, id, "docker.io/library/redis:7"); got != fits {
			t.Errorf("%s: %v", want, got)
		}
	}
	for name, want := range map[string][2]string{
		"a/b:1": {"a/b", "1"}, "host:5000/b": {"host:5000/b", ""}, "host:5000/b:2": {"host:5000/b", "2"}, "a@sha256:12": {"a", ""}, "": {"", ""},
	} {
		if repository, tag := Repository(name); repository != want[0] || tag != want[1] {
			t.Errorf("%q: %q, %q", name, repository, tag)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"start", "stop", "stats", "restart", "ps", "images", "inspect", "rm", "rmi", "logs"}
	for word, want := range map[string]string{
		"satrt": "start", "sotp": "stop", "imgaes": "images", "ispect": "inspect", "image": "images", "lgos": "logs", "log": "logs", "rmm": "rm",
		"frobnicate": "", "x": "", "": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

// TestDocument makes documents of records that lack almost everything, and of JSON that is no record.
func TestDocument(t *testing.T) {
	for _, kind := range []string{"container", "image", "sandbox"} {
		for _, record := range []string{`{}`, `{"main": null, "spec": [], "network": {"ports": [1, {"container": 80, "proto": "tcp"}]}, "config": {"volumes": [null]}}`} {
			if _, err := Document(kind, []byte(record)); err != nil {
				t.Errorf("%s of %s: %v", kind, record, err)
			}
		}
	}
	if _, err := Document("container", []byte("{")); err == nil {
		t.Error("half a record is taken")
	}
	doc, err := Document("container", []byte(`{"state": "exited", "main": {"pid": 12, "autopsy": {"exit": {"code": 0, "signal": 9}, "oom": {"main": true}, "verdict": "killed"}},
		"spec": {"process": {"args": ["sh", "-c", "x"], "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 2}]},
		"linux": {"resources": {"cpu": {"quota": 50000, "period": 100000}}}, "mounts": [{"destination": "/proc", "type": "proc"}, {"destination": "/x", "type": "none", "source": "/y", "options": ["rbind", "ro", "rslave"]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	f, err := ParseFormat(`{{.State.ExitCode}} {{.State.OOMKilled}} {{.State.Why}} {{.Path}} {{.Args}} {{.HostConfig.NanoCpus}} {{len .Mounts}}{{range .Mounts}} {{.Type}} {{.Source}} {{.RW}} {{.Propagation}}{{end}} {{gt .State.Pid 3}}`)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	const want = "137 true killed sh [-c x] 500000000 1 bind /y false rslave false\n"
	if err := f.One(&out, doc); err != nil || out.String() != want {
		t.Errorf("%q, %v, want %q", out.String(), err, want)
	}
}

// TestNumbersAreExact checks numbers up to the highest of a record.
func TestNumbersAreExact(t *testing.T) {
	doc, err := Document("sandbox", []byte(`{"limit": 18446744073709551615, "size": -9223372036854775808}`))
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(doc)
	if want := `{"limit":18446744073709551615,"size":-9223372036854775808}`; err != nil || string(out) != want {
		t.Errorf("%s, %v; want %s", out, err, want)
	}
}

// TestOwnMembers checks that a template may use members of our own, with or without docker's, and that a member of neither is
// an error.
func TestOwnMembers(t *testing.T) {
	doc, err := Document("container", []byte(`{"id": "0123", "name": "web", "owner": "cli", "image_name": "docker.io/library/box:1", "main": {"pid": 7, "autopsy": {"verdict": "ended"}},
		"labels": {"a": "b"}, "shown": {"image": "box:1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{
		`{{.Record.main.pid}} {{.Owner}} {{.ImageName}} {{.State.Why}}`: "7 cli docker.io/library/box:1 ended\n",
		`{{.Record.name}} {{.Name}} {{.Config.Image}}`:                  "web /web box:1\n",
		`{{.Config.Labels.a}} {{.Config.Labels.none}}`:                  "b <no value>\n",
		`{{index .Config.Labels "none"}}|{{.HostConfig.PidsLimit}}`:     "|<nil>\n",
		`{{json .Config.Labels}} {{json .HostConfig.PidsLimit}}`:        "{\"a\":\"b\"} null\n",
	} {
		f, err := ParseFormat(format)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := f.One(&out, doc); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", format, out.String(), err, want)
		}
	}
	for _, format := range []string{"{{.Nope}}", "{{.State.Nope}}", "{{.State.Health.Status}}"} {
		f, err := ParseFormat(format)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := f.One(&out, doc); err == nil || out.Len() > 0 {
			t.Errorf("%s: %q", format, out.String())
		}
	}
	f, err := ParseFormat("{{json .}}")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var all map[string]any
	if err := f.One(&out, doc); err != nil || json.Unmarshal(out.Bytes(), &all) != nil || all["Record"] == nil || all["HostConfig"] == nil {
		t.Errorf("%s, %v", out.String(), err)
	}
}

// TestImageCheck checks that an image's document has docker's members of its config.
func TestImageCheck(t *testing.T) {
	doc, err := Document("image", []byte(`{"names": ["docker.io/library/box:1", "docker.io/team/box:1", "ghcr.io/a/b:1"], "shell": ["/bin/bash", "-c"],
		"health": {"Test": ["CMD-SHELL", "true"], "Interval": 5000000000}, "config": {"config": {"User": "me"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	f, err := ParseFormat(`{{.RepoTags}} {{.Config.Healthcheck.Test}} {{.Config.Healthcheck.Interval}} {{.Config.Shell}} {{.Config.User}} {{.Config.Cmd}}`)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	const want = "[box:1 team/box:1 ghcr.io/a/b:1] [CMD-SHELL true] 5s [/bin/bash -c] me []\n"
	if err := f.One(&out, doc); err != nil || out.String() != want {
		t.Errorf("%q, %v, want %q", out.String(), err, want)
	}
}

func TestSwarmOfInfo(t *testing.T) {
	f, err := ParseFormat(`{{.Swarm.LocalNodeState}} {{.Swarm.NodeID}} {{.Swarm.Error}} {{len .Swarm.RemoteManagers}}{{range .Swarm.RemoteManagers}} {{.Addr}}{{end}} {{.CgroupVersion}} {{.Architecture}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cgroups string
		member  *longshorev1.SwarmStatus
		want    string
	}{
		{"v2", nil, "inactive   0 2 x86_64\n"},
		{"v1", &longshorev1.SwarmStatus{}, "inactive   0 1 x86_64\n"},
		{"hybrid", &longshorev1.SwarmStatus{Node: "n1", Managers: []string{"10.0.0.1:2377"}}, "active n1  1 10.0.0.1:2377 1 x86_64\n"},
		{"v2", &longshorev1.SwarmStatus{Node: "n1", Error: "no manager answers"}, "active n1 no manager answers 0 2 x86_64\n"},
		{"v2", &longshorev1.SwarmStatus{Error: "removed"}, "error  removed 0 2 x86_64\n"},
	} {
		var out bytes.Buffer
		info := &longshorev1.InfoResponse{Cgroups: c.cgroups, Version: &longshorev1.VersionResponse{Platform: "linux/amd64"}}
		if err := f.One(&out, Info(info, c.member, "1", time.Unix(0, 0))); err != nil || out.String() != c.want {
			t.Errorf("%v: %q, %v, want %q", c.member, out.String(), err, c.want)
		}
	}
}
