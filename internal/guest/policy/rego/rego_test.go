package rego

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/guest/policy"
)

// sample is a policy as people write them by hand.
const sample = `package agent_policy

import future.keywords.if
import future.keywords.in

default CreateContainerRequest := false
default ExecProcessRequest := false
default WaitProcessRequest := true
default StatsContainerRequest := "yes"
default PauseContainerRequest := {"ops": []}
default ResumeContainerRequest := {"allowed": 1}
default RemoveContainerRequest := {"allowed": true, "ops": [{"op": "remove", "path": "/pstate/nothing"}]}
default SignalProcessRequest := {"allowed": true, "ops": null}

CreateContainerRequest := {"allowed": true, "ops": [{"op": "add", "path": concat("/", ["/pstate", input.container_id]), "value": input.OCI.Root.Path}]} if {
	print("creating", input.container_id)
	not data.pstate[input.container_id]
	startswith(input.OCI.Root.Path, "/run/")
}

ExecProcessRequest if {
	print("the arguments are", input.process.Args)
	data.pstate[input.container_id]
	concat(" ", input.process.Args) in {"ls /"}
}

StartContainerRequest if input.container_id == "one"

CloseStdinRequest := 1 if input.container_id
CloseStdinRequest := 2 if input.exec_id
`

func evaluator(t testing.TB, text string) *Evaluator {
	t.Helper()
	e, err := New(t.Context(), text, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDecisions(t *testing.T) {
	e := evaluator(t, sample)
	for _, tt := range []struct {
		request, input, reason string // "" is allowed
	}{
		{"WaitProcessRequest", `{}`, ""},
		{"SignalProcessRequest", `{}`, ""},
		{"ExecProcessRequest", `{"container_id": "one", "process": {"Args": ["ls", "/"]}}`, `the arguments are ["ls", "/"]`},
		{"CreateContainerRequest", `{"container_id": "one", "OCI": {"Root": {"Path": "/etc"}}}`, "creating one"},
		{"CreateContainerRequest", `{"container_id": "one", "OCI": {"Root": {"Path": "/run/x"}}}`, ""},
		{"CreateContainerRequest", `{"container_id": "one", "OCI": {"Root": {"Path": "/run/x"}}}`, "creating one"},
		{"CreateContainerRequest", `{"container_id": "two", "OCI": null}`, "creating two"},
		{"ExecProcessRequest", `{"container_id": "one", "process": {"Args": ["ls", "/"]}}`, ""},
		{"ExecProcessRequest", `{"container_id": "two", "process": {"Args": ["ls", "/"]}}`, `the arguments are ["ls", "/"]`},
		{"ExecProcessRequest", `{"container_id": "one", "process": {"Args": ["sh"]}}`, `the arguments are ["sh"]`},
		{"StartContainerRequest", `{"container_id": "one"}`, ""},
		{"StartContainerRequest", `{"container_id": "two"}`, "the policy has no rule for it, or one that is undefined."},
		{"GetMetricsRequest", `{}`, "the policy has no rule for it, or one that is undefined."},
		{"StatsContainerRequest", `{}`, `the rule's value is "yes"`},
		{"PauseContainerRequest", `{}`, `no "allowed"`},
		{"ResumeContainerRequest", `{}`, `the rule's "allowed" is 1`},
		{"RemoveContainerRequest", `{}`, `the rule's "ops"`},
		{"CloseStdinRequest", `{"container_id": true, "exec_id": true}`, "produced conflicting values"},
		{"WaitProcessRequest", `{`, "the request as JSON"},
	} {
		d := e.Ask(t.Context(), tt.request, []byte(tt.input))
		if d.Allowed != (tt.reason == "") || !strings.Contains(d.Reason, tt.reason) {
			t.Errorf("%s of %s: %+v, want %q", tt.request, tt.input, d, tt.reason)
		}
		if !d.Allowed && d.State != nil {
			t.Errorf("%s of %s is denied and changes the state", tt.request, tt.input)
		}
	}
}

// TestStateIsKept: the answer has the policy's state, and another process can take it over.
func TestStateIsKept(t *testing.T) {
	const create = `{"container_id": "one", "OCI": {"Root": {"Path": "/run/x"}}}`
	d := evaluator(t, sample).Ask(t.Context(), "CreateContainerRequest", []byte(create))
	if got := string(d.State); got != `{"pstate":{"one":"/run/x"}}` {
		t.Fatalf("the state is %q, %q", got, d.Reason)
	}
	again := evaluator(t, sample)
	if err := again.SetState(d.State); err != nil {
		t.Fatal(err)
	}
	if d := again.Ask(t.Context(), "CreateContainerRequest", []byte(create)); d.Allowed {
		t.Error("the container may be created twice")
	}
	for _, state := range []string{"", "[]", `{"agent_policy":{"WaitProcessRequest":true}}`, `{"pstate":"` + strings.Repeat("x", maxState) + `"}`} {
		if err := again.SetState([]byte(state)); err == nil {
			t.Errorf("the state %.50s was taken", state)
		}
	}
}

// TestStateIsBounded: a policy that remembers more and more is denied at some time.
func TestStateIsBounded(t *testing.T) {
	e := evaluator(t, `package agent_policy
WaitProcessRequest = {"allowed": true, "ops": [{"op": "add", "path": concat("/", ["/pstate", input.key]), "value": input.value}]}`)
	value := strings.Repeat("x", maxState/2)
	for key, want := range []bool{true, true, false} {
		d := e.Ask(t.Context(), "WaitProcessRequest", []byte(`{"key":"`+string(rune('a'+key))+`","value":"`+value[:len(value)-30]+`"}`))
		if d.Allowed != want {
			t.Errorf("%d: %v, %s", key, d.Allowed, d.Reason)
		}
	}
}

func TestMalformedPolicies(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"package other\n":                  "package other",
		"package agent_policy\nx = input.": "rego_parse_error",
		"package agent_policy\nx = y":      "unsafe",
		"package agent_policy\nx = http.send({\"method\": \"get\", \"url\": \"http://localhost\"})": "undefined function http.send",
		"package agent_policy\nx = opa.runtime()":                                                   "undefined function opa.runtime",
		"package agent_policy\nx = net.lookup_ip_addr(\"localhost\")":                               "undefined function net.lookup_ip_addr",
		"package agent_policy\n\nx := 1 if {\n input.a\n}\ny := 2 if {{":                            "policy:6: ",
		"package agent_policy\nx = " + strings.Repeat("[", 100_000):                                 "recursion",
	} {
		if _, err := New(t.Context(), text, time.Minute); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

// TestBothVersionsOfTheLanguage: policies of Kata are of the first; newer tools write the
// second.
func TestBothVersionsOfTheLanguage(t *testing.T) {
	for _, text := range []string{
		"package agent_policy\nWaitProcessRequest { input.a == 1 }",
		"package agent_policy\nWaitProcessRequest if { input.a == 1 }",
		"package agent_policy\nimport rego.v1\nWaitProcessRequest if { input.a == 1 }",
	} {
		e := evaluator(t, text)
		if d := e.Ask(t.Context(), "WaitProcessRequest", []byte(`{"a": 1}`)); !d.Allowed {
			t.Errorf("%q: %s", text, d.Reason)
		}
		if d := e.Ask(t.Context(), "WaitProcessRequest", []byte(`{"a": 2}`)); d.Allowed {
			t.Errorf("%q allows everything", text)
		}
	}
}

// TestLenientPolicies: a policy that is being written may ask to be passed over.
func TestLenientPolicies(t *testing.T) {
	e := evaluator(t, "package agent_policy\nAllowRequestsFailingPolicy := true\nWaitProcessRequest := false\nCloseStdinRequest = 1 { input.a }\nCloseStdinRequest = 2 { input.b }")
	for request, want := range map[string]bool{"WaitProcessRequest": true, "ExecProcessRequest": true, "CloseStdinRequest": false} {
		if d := e.Ask(t.Context(), request, []byte(`{"a": 1, "b": 1}`)); d.Allowed != want || !e.lenient {
			t.Errorf("%s: %+v", request, d)
		}
	}
	if e := evaluator(t, "package agent_policy\nAllowRequestsFailingPolicy := \"true\""); e.lenient {
		t.Error("a text is taken for true")
	}
}

// TestEvaluationsEnd: a policy that computes for ever is a denial.
func TestEvaluationsEnd(t *testing.T) {
	e, err := New(t.Context(), `package agent_policy
WaitProcessRequest { some a, b, c; numbers.range(1, 100000)[a]; numbers.range(1, 100000)[b]; numbers.range(1, 100000)[c]; a * b * c < 0 }`, 10*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if d := e.Ask(t.Context(), "WaitProcessRequest", []byte(`{}`)); d.Allowed || !strings.Contains(d.Reason, "took longer than 10ms") {
		t.Errorf("%+v", d)
	}
}

func TestPrintsAreBounded(t *testing.T) {
	e := evaluator(t, `package agent_policy
WaitProcessRequest { some i; numbers.range(1, 5000)[i]; print("line", i, input.long); i < 0 }`)
	d := e.Ask(t.Context(), "WaitProcessRequest", []byte(`{"long": "`+strings.Repeat("ö", 100)+`"}`))
	if len(d.Reason) > maxPrint+100 || !strings.Contains(d.Reason, "line 4999 ö") || strings.Contains(d.Reason, "line 1 ") {
		t.Errorf("%d bytes: %s", len(d.Reason), d.Reason)
	}
}

// TestServe: the program over its pipe.
func TestServe(t *testing.T) {
	var in, out bytes.Buffer
	for _, m := range []struct {
		kind policy.Kind
		body string
	}{
		{policy.KindPolicy, "package agent_policy\nWaitProcessRequest = data.pstate.on"},
		{policy.KindQuestion, "WaitProcessRequest\x00{}"},
		{policy.KindState, `{"pstate": {"on": true}}`},
		{policy.KindQuestion, "WaitProcessRequest\x00{}"},
		{policy.KindState, "["},
		{policy.KindQuestion, "data.agent_policy\x00{}"},
		{policy.KindPolicy, "package agent_policy\nx ="},
	} {
		if err := policy.WriteMessage(&in, m.kind, []byte(m.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Serve(&in, &out, time.Minute); err != nil {
		t.Fatal(err)
	}
	for i, done := range []bool{true, false, true, true, false, false, false} {
		if a, err := policy.ReadAnswer(&out); err != nil || a.Done != done || !done && a.Reason == "" {
			t.Errorf("%d: %+v, %v", i, a, err)
		}
	}
	for name, m := range map[string]policy.Kind{"a question before the policy": policy.KindQuestion, "an answer": policy.KindAnswer} {
		in.Reset()
		if err := policy.WriteMessage(&in, m, []byte("WaitProcessRequest\x00{}")); err != nil {
			t.Fatal(err)
		}
		if err := Serve(&in, io.Discard, time.Minute); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if err := Serve(strings.NewReader("\x01\x00\x00"), io.Discard, time.Minute); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a message: %v", err)
	}
}

// TestPoliciesOfKata reads Kata's samples from a copy of its sources: LONGSHORE_KATA_SOURCE.
func TestPoliciesOfKata(t *testing.T) {
	source := os.Getenv("LONGSHORE_KATA_SOURCE")
	if source == "" {
		t.Skip("LONGSHORE_KATA_SOURCE is not set")
	}
	for _, tt := range []struct {
		file, request string
		allowed       bool
	}{
		{"allow-all.rego", "CreateContainerRequest", true},
		{"allow-all.rego", "ExecProcessRequest", true},
		{"allow-all.rego", "GetIPTablesRequest", false}, // it has no rule for that
		{"allow-all-except-exec-process.rego", "CreateContainerRequest", true},
		{"allow-all-except-exec-process.rego", "ExecProcessRequest", false},
		{"allow-set-policy.rego", "SetPolicyRequest", true},
		{"allow-set-policy.rego", "CreateSandboxRequest", false},
	} {
		text, err := os.ReadFile(filepath.Join(source, "src/kata-opa", tt.file))
		if err != nil {
			t.Fatal(err)
		}
		if d := evaluator(t, string(text)).Ask(t.Context(), tt.request, []byte(`{}`)); d.Allowed != tt.allowed {
			t.Errorf("%s, %s: %+v", tt.file, tt.request, d)
		}
	}
}

// TestRulesOfGenpolicy reads the rules that Kata's tool generates policies from, with its
// settings and without containers, and has them decide about the requests of its own tests.
func TestRulesOfGenpolicy(t *testing.T) {
	source := os.Getenv("LONGSHORE_KATA_SOURCE")
	if source == "" {
		t.Skip("LONGSHORE_KATA_SOURCE is not set")
	}
	dir := filepath.Join(source, "src/tools/genpolicy")
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(read("genpolicy-settings.json"), &settings); err != nil {
		t.Fatal(err)
	}
	settings["containers"] = json.RawMessage("[]")
	data, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	policy := string(read("rules.rego")) + "\npolicy_data := " + string(data) + "\n"
	asked := 0
	for _, name := range []string{"copyfile", "addarpneighbors", "updateinterface", "updateroutes", "createsandbox"} {
		var cases []struct {
			Description, Kind string
			Allowed           bool
			Request           map[string]any
		}
		if err := json.Unmarshal(read("tests/policy/testdata/"+name+"/testcases.json"), &cases); err != nil {
			t.Fatal(err)
		}
		e := evaluator(t, policy)
		for _, c := range cases {
			if c.Kind == "CreateSandboxRequest" { // Kata's agent writes these also when they are empty
				for _, list := range []string{"dns", "storages", "kernel_modules"} {
					if c.Request[list] == nil {
						c.Request[list] = []any{}
					}
				}
				if c.Request["guest_hook_path"] == nil {
					c.Request["guest_hook_path"] = ""
				}
			}
			input, err := json.Marshal(c.Request)
			if err != nil {
				t.Fatal(err)
			}
			if d := e.Ask(t.Context(), c.Kind, input); d.Allowed != c.Allowed {
				t.Errorf("%s, %s: %+v, want %v", name, c.Description, d, c.Allowed)
			}
			asked++
		}
	}
	t.Logf("asked %d times", asked)
}

// FuzzPolicy: no policy and no request ends the process, and nothing is allowed by a policy
// that was refused.
func FuzzPolicy(f *testing.F) {
	f.Add(sample, "CreateContainerRequest", []byte(`{"container_id": "one", "OCI": {"Root": {"Path": "/run/x"}}}`))
	f.Add("package agent_policy\nx = {\"allowed\": true, \"ops\": [{\"op\": \"move\", \"path\": \"/a\", \"from\": \"/pstate\"}]}", "x", []byte(`{}`))
	f.Add("package agent_policy\nx { walk(input, y) }", "x", []byte(`[[[1e400]]]`))
	f.Fuzz(func(t *testing.T, text, request string, input []byte) {
		e, err := New(t.Context(), text, 100*time.Millisecond)
		if err != nil {
			if e != nil {
				t.Error("a policy that was refused can be asked")
			}
			return
		}
		if d := e.Ask(t.Context(), request, input); !d.Allowed && d.State != nil {
			t.Error("a request that was denied changed the state")
		}
	})
}
