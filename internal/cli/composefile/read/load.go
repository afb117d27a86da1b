package read

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/cli/composefile"
)

// Options say which project is read.
type Options struct {
	composefile.Options
	Env []string // NAME=value; these win over the files
}

// Load reads a project. The error is a composefile.RefusedError if the files are valid and need something that is not possible.
func Load(ctx context.Context, o Options) (*composefile.Project, error) {
	opts, err := o.compose()
	if err != nil {
		return nil, err
	}
	if len(opts.ConfigPaths) == 0 {
		return nil, composefile.ErrNoFile
	}
	if err := allSized(opts.ConfigPaths); err != nil {
		return nil, err
	}
	where, err := newLocator(opts.ConfigPaths)
	if err != nil {
		return nil, err
	}
	if err := where.bounded(); err != nil {
		return nil, err
	}
	p, err := opts.LoadProject(ctx)
	if err != nil {
		return nil, where.explain(err)
	}
	all := append(p.ServiceNames(), p.DisabledServiceNames()...)
	slices.Sort(all)
	if p, err = o.selected(p, all); err != nil {
		return nil, err
	}
	t := &translator{p: p, where: where, env: opts.Environment}
	t.unset(opts.Environment)
	out, err := t.project()
	if err != nil {
		return nil, err
	}
	out.Declared = all
	return out, nil
}

// Look reads the outline of a project. Without a file, the outline has only the name, from the options or the environment.
func Look(ctx context.Context, o Options) (*composefile.Outline, error) {
	opts, err := o.compose()
	if err != nil {
		return nil, err
	}
	if len(opts.ConfigPaths) == 0 || o.Name != "" && len(o.Files) == 0 {
		name := cmp.Or(opts.Name, opts.Environment["COMPOSE_PROJECT_NAME"])
		if name == "" {
			return nil, composefile.ErrNoFile
		}
		if len(opts.ConfigPaths) == 0 {
			return &composefile.Outline{Name: name}, nil
		}
	}
	if err := allSized(opts.ConfigPaths); err != nil {
		return nil, err
	}
	model, err := opts.LoadModel(ctx)
	if err != nil {
		return nil, err
	}
	out := &composefile.Outline{Services: []string{}, DependsOn: map[string][]string{}}
	if services, ok := model["services"].(map[string]any); ok {
		out.Services = slices.Sorted(maps.Keys(services))
		for name, s := range services {
			service, _ := s.(map[string]any)
			needs, _ := service["depends_on"].(map[string]any)
			out.DependsOn[name] = slices.Sorted(maps.Keys(needs))
		}
	}
	if name, ok := model["name"].(string); ok {
		out.Name = name
	}
	return out, nil
}

// allSized refuses files that are too large. The loader reports those that it cannot read.
func allSized(paths []string) error {
	for _, path := range paths {
		if path == "-" {
			continue
		}
		if err := sized(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// compose returns the options of compose-go. The order of the steps is that of docker compose: the environment wins over
// .env, which may itself name the files.
func (o Options) compose() (*cli.ProjectOptions, error) {
	envFiles := o.EnvFiles
	if len(envFiles) == 0 {
		for _, e := range o.Env {
			if list, ok := strings.CutPrefix(e, "COMPOSE_ENV_FILES="); ok && list != "" {
				envFiles = strings.Split(list, ",")
			}
		}
	}
	return cli.NewProjectOptions(o.Files,
		cli.WithWorkingDirectory(o.Dir),
		cli.WithEnv(o.Env),
		cli.WithEnvFiles(envFiles...), cli.WithDotEnv,
		cli.WithConfigFileEnv,
		cli.WithDefaultConfigPath,
		cli.WithEnvFiles(envFiles...), cli.WithDotEnv,
		cli.WithDefaultProfiles(o.Profiles...),
		cli.WithName(o.Name),
		cli.WithLoadOptions(func(l *loader.Options) {
			if l.Interpolate == nil {
				return // the files are only found
			}
			l.Interpolate.Substitute = func(text string, variables template.Mapping) (string, error) {
				return template.SubstituteWithOptions(text, variables, template.WithoutLogging)
			}
		}),
	)
}

// selected returns the project with the services that the options select, in their numbers.
func (o Options) selected(p *types.Project, all []string) (*types.Project, error) {
	for _, name := range slices.Concat(o.Services, slices.Collect(maps.Keys(o.Scale))) {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("no such service: %s (the files have %s)", name, strings.Join(all, ", "))
		}
	}
	p, err := p.WithServicesEnabled(o.Services...)
	if err != nil {
		return nil, err
	}
	deps := types.IncludeDependencies
	if o.NoDeps {
		deps = types.IgnoreDependencies
	}
	if p, err = p.WithSelectedServices(o.Services, deps); err != nil {
		return nil, err
	}
	for name, n := range o.Scale {
		s, ok := p.Services[name]
		if !ok {
			return nil, fmt.Errorf("--scale %s=%d: the service is not among those that are started", name, n)
		}
		s.SetScale(n)
		p.Services[name] = s
	}
	return p.WithoutUnresolvedOptionalDependencies().WithoutUnnecessaryResources(), nil
}

// unset notes the variables that have neither a value nor a default.
func (t *translator) unset(env map[string]string) {
	missing := map[string]bool{}
	for _, s := range t.where.files {
		var doc map[string]any
		if s.doc.Decode(&doc) != nil {
			continue // the loader has accepted it
		}
		for name, v := range template.ExtractVariables(doc, template.DefaultPattern) {
			if _, ok := env[name]; !ok && v.DefaultValue == "" && v.PresenceValue == "" && !v.Required {
				missing[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		t.note("the variable %s is not set; its value is empty", name)
	}
}

// locator finds the lines of keys.
type locator struct {
	files []source // the last one wins
	seen  map[string]bool
}

// source is one file.
type source struct {
	path string // absolute
	doc  *yaml.Node
}

// newLocator reads files and those that they include. Standard input has no lines, as it can be read only once.
func newLocator(paths []string) (*locator, error) {
	l := &locator{}
	for _, path := range paths {
		if path == "-" {
			continue
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		l.read(abs)
	}
	return l, nil
}

// maxSources bounds the files of one project.
const maxSources = 1000

// read adds a file and those that it includes. A file that cannot be read is left to the loader, which reports it.
func (l *locator) read(path string) *source {
	if l.seen[path] || len(l.seen) >= maxSources {
		return nil
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[path] = true
	data, err := os.ReadFile(path)
	var doc yaml.Node
	if err != nil || yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return nil
	}
	included := &yaml.Node{}
	if _, n := child(doc.Content[0], "include"); n != nil {
		included = n
	}
	for _, n := range included.Content {
		if _, p := child(n, "path"); p != nil {
			n = p
		}
		for _, one := range append([]*yaml.Node{n}, n.Content...) {
			if one.Kind == yaml.ScalarNode {
				l.read(filepath.Join(filepath.Dir(path), one.Value))
			}
		}
	}
	l.files = append(l.files, source{path, doc.Content[0]})
	return &l.files[len(l.files)-1]
}

// maxMerges bounds the mappings that are merged into each other. An alias of itself would have no end.
const maxMerges = 20

// maxNodes bounds the elements of a file. Its aliases can make a small text large.
const maxNodes = 100_000

// bounded refuses files that are too large with their aliases.
func (l *locator) bounded() error {
	for _, s := range l.files {
		n := 0
		if !within(s.doc, &n, map[*yaml.Node]bool{}) {
			return fmt.Errorf("%s: with its aliases it has more than %d elements, or an alias of itself", display(s.path), maxNodes)
		}
	}
	return nil
}

// within reports whether a node has few enough elements, and no alias of one that it is in.
func within(n *yaml.Node, count *int, around map[*yaml.Node]bool) bool {
	if *count++; *count > maxNodes {
		return false
	}
	if n.Kind == yaml.AliasNode {
		if around[n.Alias] {
			return false
		}
		return within(n.Alias, count, around)
	}
	around[n] = true
	defer delete(around, n)
	for _, c := range n.Content {
		if !within(c, count, around) {
			return false
		}
	}
	return true
}

// child returns the key and the value of a name in a mapping or of an index in a list. It follows aliases and merge keys.
func child(n *yaml.Node, name string) (key, value *yaml.Node) { return childBelow(n, name, 0) }

// childBelow is child in a mapping that is merged into as many others as depth says.
func childBelow(n *yaml.Node, name string, depth int) (key, value *yaml.Node) {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n == nil || depth > maxMerges {
		return nil, nil
	}
	if n.Kind == yaml.SequenceNode {
		for i, e := range n.Content {
			if fmt.Sprint(i) == name {
				return e, e
			}
		}
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			continue
		}
		merged := []*yaml.Node{n.Content[i+1]}
		if merged[0].Kind == yaml.SequenceNode {
			merged = merged[0].Content
		}
		for _, m := range merged {
			if key, value = childBelow(m, name, depth+1); key != nil {
				return key, value
			}
		}
	}
	return nil, nil
}

// at returns FILE:LINE of the key at a path, or of the innermost key above it that is in a file.
func (l *locator) at(path ...string) string {
	best, depth := "the project", 0
	for _, s := range slices.Backward(l.files) {
		if text, d := l.in(s, path, 0); d > depth {
			best, depth = text, d
		}
	}
	return best
}

// maxExtends bounds the services that extend each other.
const maxExtends = 20

// in returns the position of the innermost key of path in one file, and its depth. The keys of a service may be those of the
// service that it extends.
func (l *locator) in(s source, path []string, extended int) (text string, depth int) {
	node := s.doc
	for i, name := range path {
		key, value := child(node, name)
		if key == nil {
			break
		}
		text, depth, node = fmt.Sprintf("%s:%d", display(s.path), key.Line), i+1, value
	}
	if depth != 2 || len(path) < 3 || path[0] != "services" || extended > maxExtends {
		return text, depth
	}
	_, ext := child(node, "extends")
	if ext == nil {
		return text, depth
	}
	from, service := s, ext.Value
	if _, n := child(ext, "service"); n != nil {
		service = n.Value
	}
	if _, n := child(ext, "file"); n != nil {
		file := n.Value
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(s.path), file)
		}
		if other := (&locator{}).read(file); other != nil {
			from = *other
		}
	}
	if t, d := l.in(from, slices.Concat([]string{"services", service}, path[2:]), extended+1); d > depth {
		return t, d
	}
	return text, depth
}

// display returns a path relative to the current directory if it is below it.
func display(path string) string {
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, path); err == nil && !strings.HasPrefix(rel, "..") {
			return rel
		}
	}
	return path
}

// explain adds the line to an error of the loader that names a key.
func (l *locator) explain(err error) error {
	for word := range strings.FieldsSeq(err.Error()) {
		path := strings.Split(strings.Trim(word, `'":,`), ".")
		if len(path) < 2 || !slices.Contains([]string{"services", "networks", "volumes", "secrets", "configs"}, path[0]) {
			continue
		}
		if _, rest, ok := strings.Cut(err.Error(), "additional properties '"); ok {
			name, _, _ := strings.Cut(rest, "'")
			path = append(path, name)
		}
		return fmt.Errorf("%s: %w", l.at(path...), err)
	}
	return err
}
