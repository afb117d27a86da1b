package templates_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/templates"
)

func theContext() templates.Context {
	var c templates.Context
	c.Service.ID, c.Service.Name, c.Service.Labels = "s1", "web", map[string]string{"a": "b", "c": "d"}
	c.Node.ID, c.Node.Hostname, c.Node.Platform.Architecture, c.Node.Platform.OS = "n1", "host", "x86_64", "linux"
	c.Task.ID, c.Task.Name, c.Task.Slot = "t1", "web.2.t1", "2"
	return c
}

// TestTemplates: the forms of docker's documentation and of text/template.
func TestTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"plain":             "plain",
		"{{.Service.Name}}": "web",
		"{{.Node.Hostname}}-{{.Node.ID}}-{{.Node.Platform.OS}}/{{.Node.Platform.Architecture}}":          "host-n1-linux/x86_64",
		"{{.Service.ID}} {{.Task.ID}} {{.Task.Name}} {{.Task.Slot}}":                                     "s1 t1 web.2.t1 2",
		`{{if eq .Task.Slot "2"}}two{{else}}many{{end}}`:                                                 "two",
		`{{with .Service.Labels.a}}<{{.}}>{{end}}`:                                                       "<b>",
		`{{index .Service.Labels "a"}}`:                                                                  "b",
		`{{printf "%s-%03s" .Service.Name .Task.Slot}}`:                                                  "web-002",
		`{{join "," "a" .Service.Name}}`:                                                                 "a,web",
		`{{range $k, $v := .Service.Labels}}{{$k}}={{$v};{{end}}`:                                        "",
		`{{range $k, $v := .Service.Labels}}{{$k}}={{$v}};{{else}}none{{end}}`:                           "a=b;c=d;",
		`{{range 3}}{{.}}{{if eq . 1}}{{break}}{{end}}{{end}}`:                                           "01",
		`{{define "x"}}<{{.}}>{{end}}{{template "x" .Task.Slot}}{{block "y" .Service.Name}}{{.}}{{end}}`: "<2>web",
		`{{html "<"}}{{urlquery "a b"}}{{js "'"}}{{print 1 2}}{{len "abc"}}`:                             `&lt;a+b\'1 23`,
		`{{- /* a comment */ -}} x`:                                                                      "x",
	} {
		got, err := theContext().Expand(text)
		if want == "" {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %q, %v", text, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// tooMuch are templates that would take any time, memory or stack.
func tooMuch() map[string]string {
	return map[string]string{
		"a long loop":         `{{range 1000000000}}{{end}}`,
		"loops in loops":      `{{range 1000}}{{range 1000}}{{range 1000}}x{{end}}{{end}}{{end}}`,
		"a template in one":   `{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`,
		"two that double":     `{{define "a"}}{{template "b"}}{{template "b"}}{{end}}{{define "b"}}{{template "a"}}{{template "a"}}{{end}}{{template "a"}}`,
		"a loop without end":  `{{define "a"}}{{range 9}}{{template "a"}}{{end}}{{end}}{{template "a"}}`,
		"a wide number":       `{{printf "%999999d" 1}}`,
		"a width by number":   `{{printf "%*d" 99999999 1}}`,
		"one argument often":  `{{printf "` + strings.Repeat("%[1]s", 1000) + `" "` + strings.Repeat("x", 1000) + `"}}`,
		"values that double":  `{{$a := "` + strings.Repeat("x", 1000) + `"}}` + strings.Repeat(`{{$a = print $a $a}}`, 60),
		"joins that double":   `{{$a := "` + strings.Repeat("x", 1000) + `"}}` + strings.Repeat(`{{$a = join $a $a $a}}`, 60),
		"escapes that double": `{{$a := "` + strings.Repeat("&lt;", 1000) + `"}}` + strings.Repeat(`{{$a = html $a}}`, 60),
		"a long value often":  `{{$a := "` + strings.Repeat("x", 15_000) + `"}}{{range 1000}}{{$b := js $a}}{{end}}`,
		"long joins often":    `{{$a := "` + strings.Repeat("x", 15_000) + `"}}{{range 1000}}{{$b := join "" $a}}{{end}}`,
		"a depth of its own":  `{{define "a"}}{{longshore_pay 0 -1}}{{range 1}}{{template "a"}}{{end}}{{end}}{{template "a"}}`,
		"blocks in blocks":    strings.Repeat("{{range 1}}", 31) + strings.Repeat("{{end}}", 31),
		"an error far inside": strings.Repeat("{{range 1}}", 30) + "{{.Nothing}}" + strings.Repeat("{{end}}", 30),
		"many parentheses":    "{{" + strings.Repeat("(", 20_001),
		"many blocks":         strings.Repeat("{{if 1}}", 10_001),
		"a purse of its own":  `{{longshore_pay -1000000 0}}{{range 100000}}{{end}}`,
	}
}

func TestTemplatesThatCannotBe(t *testing.T) {
	wrong := map[string]string{
		"no end": "{{", "no such field": "{{.Nothing}}", "no such label": "{{.Service.Labels.none}}", "no function": "{{secret `a`}}", "no call": "{{call .Service}}",
		"too long": "{{" + strings.Repeat(" ", 16<<10) + "}}", "join of nothing": "{{join}}",
	}
	for name, text := range tooMuch() {
		wrong[name] = text
	}
	for name, text := range wrong {
		if got, err := theContext().Expand(text); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %.60q, %v", name, got, err)
		}
	}
	for name, text := range tooMuch() {
		if got, err := theContext().Payload([]byte(text), sources()); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s as a secret: %.60q, %v", name, got, err)
		}
	}
}

const planted = "planted-secret"

func sources() templates.Sources {
	of := func(known map[string]string) func(string) (string, error) {
		return func(name string) (string, error) {
			if v, ok := known[name]; ok {
				return v, nil
			}
			return "", templates.Error("there is no such thing")
		}
	}
	return templates.Sources{Secret: of(map[string]string{"pw": planted}), Config: of(map[string]string{"/etc/c": "conf"}), Env: func(n string) (string, error) { return "<" + n + ">", nil }}
}

func TestPayloads(t *testing.T) {
	long := strings.Repeat("x", 500<<10)
	for text, want := range map[string]string{
		"":      "",
		"plain": "plain",
		`user={{env "USER"}} pass={{secret "pw"}} {{config "/etc/c"}} on {{.Node.Hostname}}`: "user=<USER> pass=" + planted + " conf on host",
		long + `{{.Task.Slot}}`: long + "2",
	} {
		if got, err := theContext().Payload([]byte(text), sources()); err != nil || string(got) != want {
			t.Errorf("%.60s: %.60q, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"a\nb\n{{" + planted + "}}":                             "its template cannot be expanded (line 3): invalid argument",
		"{{(secret `pw`).Field}}":                               "its template cannot be expanded (line 1): invalid argument",
		"{{index .Service.Labels (secret `pw`) 1}}":             "its template cannot be expanded (line 1): invalid argument",
		"\n{{secret `" + planted + "`}}":                        "its template cannot be expanded (line 2): there is no such thing: invalid argument",
		"{{range 1000000}}" + planted + "{{end}}":               "its template cannot be expanded (line 1): it is too much for a template: too many steps: invalid argument",
		"{{range 9000}}" + strings.Repeat("x", 500) + "{{end}}": "its template cannot be expanded: it is too much for a template: a long text: invalid argument",
		"{{range 1000000}}{{end}}":                              "its template cannot be expanded (line 1): it is too much for a template: too many steps: invalid argument",
		strings.Repeat("x", 1<<20) + "{{.Task.Slot}}":           "a template of 1048590 bytes, at most 1048576: invalid argument",
	} {
		if got, err := theContext().Payload([]byte(text), sources()); err == nil || err.Error() != want || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.60q: %.60q, %v", text, got, err)
		}
	}
}

// FuzzTemplates: for any service or secret, the result is bounded, and an error tells nothing of a
// secret.
func FuzzTemplates(f *testing.F) {
	for _, text := range []string{"{{.Service.Name}}", `{{printf "%5d" 1}}`, `{{with .Task}}{{.ID}}{{end}}`, `{{index .Service.Labels "a"}}`, `{{secret "pw"}}`, `{{range .Service.Labels}}{{.}}{{end}}`} {
		f.Add(text)
	}
	for _, text := range tooMuch() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := theContext().Expand(text)
		if err != nil && !errdefs.IsInvalidArgument(err) {
			t.Fatalf("%v", err)
		}
		if len(got) > max(64<<10, len(text)) {
			t.Fatalf("%d bytes", len(got))
		}
		out, err := theContext().Payload([]byte(text), sources())
		if err != nil && (!errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), planted)) {
			t.Fatalf("%v", err)
		}
		if len(out) > 1<<20 {
			t.Fatalf("%d bytes", len(out))
		}
	})
}
