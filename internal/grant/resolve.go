package grant

import (
	"path"
	"strconv"
	"strings"
)

// ArgdataNumber is the descriptor of a native program's argument, and FirstNumber that of its first grant.
const (
	ArgdataNumber = 3
	FirstNumber   = 4
)

// Request has the facts of the orchestrator's request and the agent's records about the container; a document can only
// name parts of it.
type Request struct {
	// Mounts are the request's mounts by their path in the container, with the rights that an ordinary container would have in them.
	Mounts map[string]Rights
	// Secrets are the names of the orchestrator's secrets.
	Secrets []string
	// Env is the container's environment, NAME=VALUE; of equal names the last one counts.
	Env []string
	// Identity are the labels of the container's own handles, by Server and Client, which a document cannot set.
	Identity map[Kind]map[string]string
}

// Descriptor is the descriptor for one grant of a document.
type Descriptor struct {
	// Number is the descriptor in the program, from FirstNumber on without a gap.
	Number int `json:"number"`
	// Name is where the grant stands in the document, for LISTEN_FDNAMES: printable ASCII without colons, at most 255 bytes.
	Name string `json:"name"`
	// Grant describes the file to open. A mount's rights are set, and not more than the mount's; labels include the
	// container's identity.
	Grant Grant `json:"grant"`
}

// Resolved has the descriptors and argument of a program's start.
type Resolved struct {
	Descriptors []Descriptor `json:"descriptors"`
	// Argdata is the document as JSON; a grant stands there as {"fd": N}.
	Argdata []byte `json:"argdata"`
	// Environment are the variables that were granted: a wasm program gets them as such, too.
	Environment []string `json:"environment,omitempty"`
}

// Has reports whether a descriptor of the kind is among those resolved.
func (r *Resolved) Has(kind Kind) bool {
	for _, d := range r.Descriptors {
		if d.Grant.Kind == kind {
			return true
		}
	}
	return false
}

// Resolve says which descriptors a native program gets for doc. An error has the place in the document.
func Resolve(doc *Document, req Request) (*Resolved, error) {
	return resolve(doc, req, "fd", byNumber)
}

// ResolveWasm is Resolve for wasm programs, where a grant stands as {"path": P}: a mount's path is its preopened directory's, that of
// another descriptor is /fd/N.
func ResolveWasm(doc *Document, req Request) (*Resolved, error) {
	return resolve(doc, req, "path", nil)
}

func resolve(doc *Document, req Request, key string, refer reference) (*Resolved, error) {
	root := doc.Root.Clone()
	r := &Resolved{Descriptors: []Descriptor{}}
	numbers := map[*Value]int{}
	env := environment(req.Env)
	granted, taken := map[string]bool{}, map[string]bool{}
	err := root.Walk(func(path string, v *Value) error {
		g, err := check(*v.Grant, v.Pos, req)
		if err != nil {
			return err
		}
		if g.Kind == Env {
			return expandEnv(v, g.Name, env, granted)
		}
		if len(r.Descriptors) == MaxDescriptors {
			return Errorf(v.Pos, "more than %d grants", MaxDescriptors)
		}
		number := FirstNumber + len(r.Descriptors)
		numbers[v] = number
		r.Descriptors = append(r.Descriptors, Descriptor{Number: number, Name: descriptorName(path, g, number, taken), Grant: g})
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(granted) {
		r.Environment = append(r.Environment, name+"="+env[name])
	}
	if refer == nil {
		refer = func(n int) (string, string) {
			e := encoder{}
			e.text(WasmPath(r.Descriptors[n-FirstNumber]))
			return "path", string(e.out)
		}
	}
	e := encoder{numbers: numbers, refer: refer, key: key}
	if err := e.value(&root); err != nil {
		return nil, err
	}
	if len(e.out) > MaxArgdata {
		return nil, Errorf(doc.Root.Pos, "the argument is longer than %d bytes as JSON", MaxArgdata)
	}
	r.Argdata = e.out
	return r, nil
}

// WasmPath is the path of d in a wasm program's argument.
func WasmPath(d Descriptor) string {
	switch d.Grant.Kind {
	case Mount:
		return d.Grant.Name
	case Server, Client:
		if name := d.Name; path.Clean(name) == name && !strings.Contains(name, "/") && name != "." && name != ".." {
			return "/svc/" + name
		}
		return "/svc/" + strconv.Itoa(d.Number)
	}
	return "/fd/" + strconv.Itoa(d.Number)
}

// Check returns g completed from req, or an error if req does not have it.
func check(g Grant, pos Pos, req Request) (Grant, error) {
	g = g.Clone()
	switch g.Kind {
	case Mount:
		if err := CheckMountName(g.Name); err != nil {
			return g, Errorf(pos, "%v", err)
		}
		has, ok := req.Mounts[g.Name]
		if !ok {
			return g, Errorf(pos, "Unknown volume mount %q: the request mounts %s", g.Name, listed(sortedKeys(req.Mounts)))
		}
		asked := g.Rights
		if g.AtMost {
			g.Rights, g.AtMost = g.Rights&has, false
		}
		if more := g.Rights &^ has; more != 0 {
			return g, Errorf(pos, "volume mount %q gives %s, the document asks for %s", g.Name, has, g.Rights)
		}
		if g.Rights == 0 {
			return g, Errorf(pos, "volume mount %q gives nothing of %s", g.Name, asked)
		}
	case Secret:
		for _, s := range req.Secrets {
			if s == g.Name {
				return g, nil
			}
		}
		return g, Errorf(pos, "unknown secret %q", g.Name)
	case Server, Client:
		if g.Labels == nil {
			g.Labels = map[string]string{}
		}
		for _, k := range sortedKeys(req.Identity[g.Kind]) {
			if _, ok := g.Labels[k]; ok {
				return g, Errorf(pos, "Attempted to override predefined label %q", k)
			}
		}
		for k, v := range req.Identity[g.Kind] {
			g.Labels[k] = v
		}
	}
	return g, nil
}

// CheckMountName refuses names that cannot be a mount's path in a container. Such a path only names a mount, it is
// never opened.
func CheckMountName(name string) error {
	switch {
	case name == "":
		return Errorf(Pos{}, "a mount needs a name, the path of the mount in the container")
	case strings.ContainsRune(name, 0) || len(name) > 4095:
		return Errorf(Pos{}, "mount %q is no path", name)
	case path.Clean(name) != name && path.Clean(name)+"/" != name:
		return Errorf(Pos{}, "mount %q: a mount is named by its path in the container, without \".\" and \"..\"", name)
	case name == ".." || strings.HasPrefix(name, "../"):
		return Errorf(Pos{}, "mount %q: a mount is named by its path in the container, without \".\" and \"..\"", name)
	}
	return nil
}

func listed(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	const most = 16
	if len(names) > most {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(len(names)-most) + " more"
	}
	return strings.Join(names, ", ")
}

func environment(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, e := range env {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" {
			m[name] = value
		}
	}
	return m
}

// ExpandEnv makes a value of a granted environment variable, and a mapping of all variables.
func expandEnv(v *Value, name string, env map[string]string, granted map[string]bool) error {
	v.Grant = nil
	if name != "" {
		value, ok := env[name]
		if !ok {
			return Errorf(v.Pos, "unknown environment variable %q", name)
		}
		v.Form, v.Text = String, value
		granted[name] = true
		return nil
	}
	v.Form = Mapping
	for _, n := range sortedKeys(env) {
		v.Fields = append(v.Fields, Field{Pos: v.Pos, Name: n, Value: Value{Pos: v.Pos, Form: String, Text: env[n]}})
		granted[n] = true
	}
	return nil
}

// maxName is how many bytes a descriptor's name may have.
const maxName = 255

// DescriptorName returns a name for LISTEN_FDNAMES from a place in the document.
func descriptorName(path string, g Grant, number int, taken map[string]bool) string {
	var b strings.Builder
	for _, r := range path {
		if r <= ' ' || r >= 0x7f || r == ':' {
			r = '_'
		}
		b.WriteRune(r)
		if b.Len() == maxName {
			break
		}
	}
	name := b.String()
	if name == "" || taken[name] {
		name = string(g.Kind) + "-" + strconv.Itoa(number)
	}
	taken[name] = true
	return name
}
