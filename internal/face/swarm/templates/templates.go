// Package templates expands the templates of a Swarm's services: in variables, hostname and
// mounts, and in secrets and configs with the templating driver "golang".
//
// Their language is that of text/template, as with docker. Their authors are the users with the
// right to create services, and the agent expands them, so the text, the output and the work are
// bounded: before each step a template pays for it, and one that cannot pay is refused. It must not
// know tasks. Start at Context.
package templates

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/longshore/longshore/internal/invalid"
)

// The bounds of one template.
const (
	maxText    = 16 << 10  // bytes of a template in a variable, a hostname or a mount
	maxValue   = 64 << 10  // bytes of its result, and of each intermediate value
	maxPayload = 1 << 20   // bytes of a secret or config, which managers bound to a megabyte, and of its result
	maxActions = 10_000    // actions in a text
	maxParens  = 20_000    // opening parentheses in a text
	maxDepth   = 30        // blocks in blocks, and templates in templates
	maxWork    = 256 << 10 // bytes of executed actions, counted at each execution
	minPrice   = 16        // bytes that each step counts at least: calling a function takes microseconds
	perByte    = 16        // bytes of a value that count as one where a function reads all of it
)

// Context has the names for templates: docker's documentation has the list. Nothing in it has
// methods, which templates could call.
type Context struct {
	Service struct {
		ID, Name string
		Labels   map[string]string
	}
	Node struct {
		ID, Hostname string
		Platform     struct{ Architecture, OS string }
	}
	Task struct {
		ID, Name string
		Slot     string
	}
}

// LogTag has the fields for the template of the log option tag. A tag is expanded when its container
// exists.
type LogTag struct {
	ID, FullID           string
	Name                 string
	ImageID, ImageFullID string
	ImageName            string
	DaemonName, Hostname string
	Command              string
	ContainerLabels      map[string]string
}

// Expand expands a tag. InvalidArgument when that cannot be.
func (l LogTag) Expand(text string) (string, error) { return expandText(text, l) }

// Sources are the additional functions for templates of secrets and configs. The targets are those
// of the task's references, as written there.
type Sources struct {
	Secret, Config func(target string) (string, error)
	Env            func(name string) (string, error)
}

// Expand expands a text in a task's spec. InvalidArgument when that cannot be.
func (c Context) Expand(text string) (string, error) { return expandText(text, c) }

func expandText(text string, c any) (string, error) {
	if !strings.Contains(text, "{{") {
		return text, nil
	}
	if len(text) > maxText {
		return "", invalid.Errorf("a template of %d bytes, at most %d", len(text), maxText)
	}
	return expand(text, c, nil, maxValue)
}

// Payload expands the content of a secret or a config. InvalidArgument if it is not valid; the
// error has the line, and nothing of its content.
func (c Context) Payload(content []byte, from Sources) ([]byte, error) {
	if len(content) > maxPayload {
		return nil, invalid.Errorf("a template of %d bytes, at most %d", len(content), maxPayload)
	}
	out, err := expand(string(content), c, template.FuncMap{"secret": from.Secret, "config": from.Config, "env": from.Env}, maxPayload)
	var e *ownError
	switch {
	case err == nil:
		return []byte(out), nil
	case errors.As(err, &e):
		return nil, invalid.Errorf("its template cannot be expanded%s: %s", line(err), e.text)
	default:
		return nil, invalid.Errorf("its template cannot be expanded%s", line(err))
	}
}

// Error makes an error of one of the Sources with a text that users may see.
func Error(format string, args ...any) error { return &ownError{fmt.Sprintf(format, args...)} }

// ownError is an error with a text of ours: it contains nothing of a secret.
type ownError struct{ text string }

// Error implements error.
func (e *ownError) Error() string { return e.text }

// line is where in a template an error is, as text/template says.
func line(err error) string {
	if m := regexp.MustCompile(`^template: [^:]*:(\d+)`).FindStringSubmatch(err.Error()); m != nil {
		return " (line " + m[1] + ")"
	}
	return ""
}

func tooMuch(what string) error { return &ownError{"it is too much for a template: " + what} }

func expand(text string, c any, more template.FuncMap, limit int) (string, error) {
	if err := boundedText(text); err != nil {
		return "", invalid.Errorf("%w", err)
	}
	pay := &purse{left: maxWork}
	// A label that the service has not is an error, as with docker.
	t, err := template.New("").Option("missingkey=error").Funcs(pay.functions()).Funcs(more).Funcs(template.FuncMap{payName: pay.pay}).Parse(text)
	if err != nil {
		return "", invalid.Errorf("%w", err)
	}
	if err := charge(t); err != nil {
		return "", invalid.Errorf("%w", err)
	}
	out := limited{limit: limit}
	if err := t.Execute(&out, c); err != nil {
		return "", invalid.Errorf("%w", err)
	}
	return out.String(), nil
}

// boundedText refuses a text that would take much stack to parse: the parser calls itself for each
// parenthesis and each block.
func boundedText(text string) error {
	switch {
	case strings.Contains(text, payName):
		return &ownError{"there is no function " + payName}
	case strings.Count(text, "{{") > maxActions:
		return tooMuch(fmt.Sprintf("more than %d actions", maxActions))
	case strings.Count(text, "(") > maxParens:
		return tooMuch(fmt.Sprintf("more than %d parentheses", maxParens))
	}
	return nil
}

// purse is a template's budget, and its depth in templates. Depth is bounded because text/template
// panics with each error, and passes it on at each loop.
type purse struct{ left, depth int64 }

func (p *purse) pay(price, depth int64) (string, error) {
	if p.left -= price; price < 0 || p.left < 0 {
		return "", tooMuch("too many steps")
	}
	if p.depth += depth; p.depth < 0 || p.depth > maxDepth {
		return "", tooMuch("templates in templates")
	}
	return "", nil
}

// payName is the function for payments; templates must not name it.
const payName = "longshore_pay"

// charger puts a payment before each step of a template: one for each action, by its length, and
// one for each round of a loop and each use of a template. A template executes its lists; actions
// and conditions call functions, each for a few bytes of text.
type charger struct{ pay *parse.ActionNode }

func charge(t *template.Template) error {
	pays, err := parse.Parse("pay", "{{"+payName+" 1 2}}", "", "", map[string]any{payName: (&purse{}).pay})
	if err != nil {
		return err
	}
	pay, ok := pays["pay"].Root.Nodes[0].(*parse.ActionNode)
	if !ok {
		return errors.New("no action")
	}
	for _, t := range t.Templates() {
		if t.Tree == nil {
			continue
		}
		if err := (charger{pay}).list(t.Root, 0); err != nil {
			return err
		}
	}
	return nil
}

func (c charger) list(l *parse.ListNode, depth int) (err error) {
	if l == nil {
		return nil
	}
	if depth > maxDepth {
		return tooMuch("blocks in blocks")
	}
	nodes := []parse.Node{c.payment(minPrice, 0)}
	for _, n := range l.Nodes {
		price := 0
		switch n := n.(type) {
		case *parse.ActionNode:
			price = len(n.String())
		case *parse.TemplateNode:
			nodes = append(nodes, c.payment(max(len(n.String()), minPrice), 1), n, c.payment(0, -1))
			continue
		case *parse.IfNode:
			price, err = c.branch(&n.BranchNode, depth)
		case *parse.RangeNode:
			price, err = c.branch(&n.BranchNode, depth)
		case *parse.WithNode:
			price, err = c.branch(&n.BranchNode, depth)
		}
		if err != nil {
			return err
		}
		if price > 0 {
			nodes = append(nodes, c.payment(max(price, minPrice), 0))
		}
		nodes = append(nodes, n)
	}
	l.Nodes = nodes
	return nil
}

// branch charges the content of a branch, and returns the price of its condition.
func (c charger) branch(b *parse.BranchNode, depth int) (int, error) {
	return len(b.Pipe.String()), errors.Join(c.list(b.List, depth+1), c.list(b.ElseList, depth+1))
}

// payment is the action that pays.
func (c charger) payment(numbers ...int) parse.Node {
	n, _ := c.pay.Copy().(*parse.ActionNode)
	for i, number := range numbers {
		if arg, ok := n.Pipe.Cmds[0].Args[i+1].(*parse.NumberNode); ok {
			arg.Int64, arg.IsInt, arg.IsUint, arg.Text = int64(number), true, false, fmt.Sprint(number)
		}
	}
	return n
}

// functions are docker's, and replacements of those of package template with unbounded output. They
// cost the size of their input.
func (p *purse) functions() template.FuncMap {
	escape := func(f func(...any) string) func(...any) (string, error) {
		return func(args ...any) (string, error) {
			if err := p.read(args); err != nil {
				return "", err
			}
			return bounded(f(args...))
		}
	}
	return template.FuncMap{
		"join": func(by string, list ...string) (string, error) {
			if n := len(by) * len(list); n > maxValue {
				return "", tooMuch("a long value")
			}
			size := 0
			for _, s := range list {
				if size += len(s); size > maxValue {
					return "", tooMuch("a long value")
				}
			}
			if _, err := p.pay(int64(size/perByte), 0); err != nil {
				return "", err
			}
			return bounded(strings.Join(list, by))
		},
		"print": escape(fmt.Sprint), "println": escape(fmt.Sprintln),
		"html": escape(template.HTMLEscaper), "js": escape(template.JSEscaper), "urlquery": escape(template.URLQueryEscaper),
		"printf": func(format string, args ...any) (string, error) {
			// A number in the arguments may be a width, and an argument may be named twice.
			if strings.ContainsAny(format, "*[") || widest(format) > 3 {
				return "", tooMuch("a wide format")
			}
			if err := p.read(args); err != nil {
				return "", err
			}
			return bounded(fmt.Sprintf(format, args...))
		},
	}
}

func bounded(s string) (string, error) {
	if len(s) > maxValue {
		return "", tooMuch("a long value")
	}
	return s, nil
}

// read pays for arguments, and refuses those that are long when they are printed one after
// the other.
func (p *purse) read(args []any) error {
	size := 0
	for _, a := range args {
		switch a := a.(type) {
		case string:
			size += len(a)
		default:
			size += len(fmt.Sprint(a))
		}
		if size > maxValue {
			return tooMuch("a long value")
		}
	}
	_, err := p.pay(int64(size/perByte), 0)
	return err
}

// widest is how many digits the longest number in a format has.
func widest(format string) (most int) {
	n := 0
	for _, r := range format {
		if n++; r < '0' || r > '9' {
			n = 0
		}
		most = max(most, n)
	}
	return most
}

// limited bounds a template's output.
type limited struct {
	strings.Builder
	limit int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.limit {
		return 0, tooMuch("a long text")
	}
	return l.Builder.Write(p)
}

// WriteString implements io.StringWriter with the same bound.
func (l *limited) WriteString(s string) (int, error) { return l.Write([]byte(s)) }
