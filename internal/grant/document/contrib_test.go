package document_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/document"
)

// TestTheExamplesHaveOneDocument: the documents in contrib/grants are all that of program.yaml, and its policy allows it.
func TestTheExamplesHaveOneDocument(t *testing.T) {
	const dir = "../../../contrib/grants"
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	argument := func(name, text string) string {
		doc, err := document.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v: %q", name, err, text)
		}
		r, err := grant.Resolve(doc, grant.Request{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return string(r.Argdata)
	}
	want := argument("program.yaml", read("program.yaml"))
	var pod struct {
		Metadata struct{ Annotations map[string]string }
	}
	var stack struct {
		Services map[string]struct{ Labels map[string]string }
	}
	for name, to := range map[string]any{"pod.yaml": &pod, "stack.yaml": &stack} {
		if err := yaml.Unmarshal([]byte(read(name)), to); err != nil {
			t.Fatal(err)
		}
	}
	var container struct{ Annotations map[string]string }
	var launch struct {
		LaunchContainer struct {
			Container struct {
				NetworkInfos []struct {
					Labels struct {
						Labels []struct{ Key, Value string }
					}
				} `json:"network_infos"`
			}
		} `json:"launch_container"`
	}
	for name, to := range map[string]any{"container.json": &container, "launch.json": &launch} {
		if err := json.Unmarshal([]byte(read(name)), to); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(name, pattern string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(read(name))
		if m == nil {
			t.Fatalf("%s has no document", name)
		}
		return m[1]
	}
	for name, text := range map[string]string{
		"pod.yaml": pod.Metadata.Annotations["longshore.grants/greeter"], "container.json": container.Annotations["longshore.grants"],
		"stack.yaml": stack.Services["greeter"].Labels["longshore.grants"], "launch.json": launch.LaunchContainer.Container.NetworkInfos[0].Labels.Labels[0].Value,
		"grants.nomad.hcl": cut("grants.nomad.hcl", `(?s)<<EOT\n(.*)EOT\n`), "Containerfile": cut("Containerfile", `LABEL longshore.grants="(.*)"`),
	} {
		if got := argument(name, text); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	policy, err := document.ParsePolicy([]byte(read("policy.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := document.Parse([]byte(read("program.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	if _, denied := grant.Decide(nil, doc, policy.For(document.Subject{Owner: "cri", Namespace: "default", Image: "x"})); len(denied) > 0 {
		t.Errorf("the policy denies %v", denied)
	}
	for _, file := range strings.Fields("pod.yaml runtimeclasses.yaml pod.json container.json grants.nomad.hcl stack.yaml launch.json Containerfile policy.yaml program.yaml") {
		if !strings.Contains(read("README.md"), "`"+file+"`") {
			t.Errorf("README.md does not tell of %s", file)
		}
	}
}
