package tour

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
)

// templatesDir has the table of templates, and the records of the objects that its first lines make.
const templatesDir = "testdata/templates"

// templateRow is a template that people give to docker, and its expected output: literal but for facts such as $id, with \n
// for a new line and \s for a space at the end.
type templateRow struct {
	number       int
	subject      string // the object or the list
	template     string
	ours, docker string
	why          string // the reason why they differ
}

// templateTable is the content of the table: lines that make the objects, then the templates.
type templateTable struct {
	setup []string
	rows  []templateRow
}

func readTemplates(t *testing.T) (table templateTable) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(templatesDir, "table.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		key, value, _ := strings.Cut(strings.TrimPrefix(line, "\t"), " ")
		switch {
		case line == "" || line[0] == '#':
		case key == "setup":
			table.setup = append(table.setup, value)
		case line[0] != '\t':
			table.rows = append(table.rows, templateRow{number: n + 1, subject: key, template: value})
		default:
			if len(table.rows) == 0 {
				t.Fatalf("line %d of the table of templates belongs to no template", n+1)
			}
			r := &table.rows[len(table.rows)-1]
			switch key {
			case "same":
				r.ours, r.docker = value, value
			case "ours":
				r.ours = value
			case "docker":
				r.docker = value
			case "why":
				r.why = value
			default:
				t.Fatalf("line %d of the table of templates: %q is none of same, ours, docker, why", n+1, key)
			}
		}
	}
	for _, r := range table.rows {
		if (r.ours == r.docker) != (r.why == "") {
			t.Fatalf("line %d of the table of templates: a template with two outputs needs a reason, and one with the same output needs none", r.number)
		}
	}
	return table
}

// facts are the forms of texts that differ with each object and node.
var facts = map[string]string{
	"id": `[0-9a-f]{64}`, "short": `[0-9a-f]{12}`, "path": `/[^ \]"|,}]*`, "ip": `[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+`, "mac": `[0-9a-f]{2}(:[0-9a-f]{2}){5}`,
	"time": `[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]+Z| [0-9:.]+ \+0000 UTC)`, "port": `[0-9]{4,5}`, "number": `[0-9]+`, "size": `[0-9.]+[kMG]?B`,
	"span": `(About an? |[Ll]ess than an? |[0-9]+ )(second|minute|hour|day|month|year)s?`, "any": `(?s:.*)`,
}

var factName = regexp.MustCompile(`\$(id|short|path|ip|mac|time|port|number|size|span|any)\b`)

// fits reports whether an output is the expected one.
func fits(expected, output string) bool {
	expected = strings.NewReplacer(`\n`, "\n", `\s`, " ").Replace(expected)
	var pattern strings.Builder
	for {
		at := factName.FindStringSubmatchIndex(expected)
		if at == nil {
			break
		}
		pattern.WriteString(regexp.QuoteMeta(expected[:at[0]]) + "(" + facts[expected[at[2]:at[3]]] + ")")
		expected = expected[at[1]:]
	}
	return regexp.MustCompile("^" + pattern.String() + regexp.QuoteMeta(expected) + "$").MatchString(output)
}

// TestTemplates fills each template of the table from records of an agent.
func TestTemplates(t *testing.T) {
	table := readTemplates(t)
	numbers := map[string]int{}
	for _, r := range table.rows {
		kind := map[string]string{
			"web": "container", "plain": "container", "over": "container", "made": "container", "loop": "container", "box": "image", "app": "network", "data": "volume",
			"info": "node", "version": "node",
		}[r.subject]
		numbers[kind]++
		f, err := present.ParseFormat(r.template)
		if err != nil {
			t.Errorf("line %d: %s: %v", r.number, r.template, err)
			continue
		}
		var out strings.Builder
		if err := fill(t, f, r.subject, &out); err != nil {
			t.Errorf("line %d: %s: %v", r.number, r.template, err)
		} else if got := strings.TrimSuffix(out.String(), "\n"); !fits(r.ours, got) {
			t.Errorf("line %d: %s:\n%q, want\n%q", r.number, r.template, got, r.ours)
		}
	}
	for kind, least := range map[string]int{"container": 89, "image": 17, "network": 9, "volume": 3, "node": 22} {
		if numbers[kind] < least {
			t.Errorf("the table has %d templates of a %s, at least %d are wanted", numbers[kind], kind, least)
		}
	}
}

// fill fills a template with the recorded object of a subject.
func fill(t *testing.T, f *present.Format, subject string, out *strings.Builder) error {
	t.Helper()
	switch subject {
	case "web", "plain", "over", "made", "loop", "box":
		kind := "container"
		if subject == "box" {
			kind = "image"
		}
		doc, err := present.Document(kind, recorded(t, subject))
		if err != nil {
			t.Fatal(err)
		}
		return f.One(out, doc)
	case "app", "networks":
		n := decoded(t, "app", &longshorev1.Network{})
		if subject == "app" {
			return f.One(out, present.Network(n))
		}
		return f.Rows(out, nil, []present.Row{listing.Network(n)})
	case "data", "volumes":
		v := decoded(t, "data", &longshorev1.Volume{})
		if subject == "data" {
			return f.One(out, present.Volume(v))
		}
		return f.Rows(out, nil, []present.Row{listing.Volume(v)})
	case "info":
		return f.One(out, present.Info(decoded(t, "info", &longshorev1.InfoResponse{}), nil, "1.2.3", time.Unix(1e9, 0)))
	case "version":
		return f.One(out, present.Version(decoded(t, "version", &longshorev1.VersionResponse{}), "1.2.3"))
	case "ps":
		return f.Rows(out, nil, []present.Row{listing.Container(decoded(t, "ps", &longshorev1.Container{}), false)})
	case "images":
		return f.Rows(out, nil, listing.Images(decoded(t, "images", &longshorev1.Image{}), false))
	}
	return fmt.Errorf("no record of %q", subject)
}

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(templatesDir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func decoded[M proto.Message](t *testing.T, name string, m M) M {
	t.Helper()
	if err := protojson.Unmarshal(recorded(t, name), m); err != nil {
		t.Fatalf("%s.json: %v", name, err)
	}
	return m
}

// TestMembersOfDocker checks that a document has each member that docker 28's has, of the same kind. The e2e test beside
// dockerd writes docker's members.
func TestMembersOfDocker(t *testing.T) {
	var members map[string]map[string]string
	if err := json.Unmarshal(recorded(t, "members"), &members); err != nil {
		t.Fatal(err)
	}
	if len(members) != 4 || len(members["web"]) < 150 {
		t.Fatalf("%d objects, %d members of a container", len(members), len(members["web"]))
	}
	for subject, list := range members {
		f, err := present.ParseFormat("{{json .}}")
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := fill(t, f, subject, &out); err != nil {
			t.Fatal(err)
		}
		ours := membersOf(t, []byte(out.String()))
		for path, kind := range list {
			if differs[path] == "" && !alike(ours[path], kind) {
				t.Errorf("%s: %s is %q in docker's document and %q in ours", subject, path, kind, ours[path])
			}
		}
	}
}

// differs are members of docker's documents that ours have not, or of another kind, and why.
var differs = map[string]string{
	".GraphDriver.Data.ID":       "our layers have no ID of their own",
	".GraphDriver.Data.LowerDir": "an image's layers are not mounted while no container runs", ".GraphDriver.Data.MergedDir": "as above",
	".GraphDriver.Data.UpperDir": "as above", ".GraphDriver.Data.WorkDir": "as above", ".GraphDriver.Data": "as above",
	".HostConfig.OomKillDisable": "null, as docker has it on cgroup v2",
	".ExecIDs":                   "docker lists a health check while it runs; ours is no exec with a record", ".ExecIDs[]": "as above",
}

// alike reports whether two members are of the same kind. Docker omits an empty member, or has null.
func alike(ours, docker string) bool { return ours == docker || ours != "" && docker == "null" }

// membersOf returns the kind of each member of a JSON document by its path. An element of a list is [], and each member of a
// map from names to objects or lists is *.
func membersOf(t *testing.T, document []byte) map[string]string {
	t.Helper()
	var doc any
	if err := json.Unmarshal(document, &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	addMembers(out, "", doc)
	return out
}

// maps matches the paths of maps, which have names of the user's.
var maps = regexp.MustCompile(`^(\.Config\.(Labels|ExposedPorts|Volumes)|\.HostConfig\.(PortBindings|Sysctls|Tmpfs)|\.NetworkSettings\.(Ports|Networks)|\.Containers|\.Labels|\.Options)$`)

func addMembers(out map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		out[path] = "object"
		for name, below := range v {
			if maps.MatchString(path) {
				name = "*"
			}
			addMembers(out, path+"."+name, below)
		}
	case []any:
		out[path] = "list"
		for _, below := range v {
			addMembers(out, path+"[]", below)
		}
	case string:
		out[path] = "text"
	case float64:
		out[path] = "number"
	case bool:
		out[path] = "boolean"
	case nil:
		if out[path] == "" {
			out[path] = "null"
		}
	}
}
