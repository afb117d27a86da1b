package present

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
)

// Row is the data of one object in a list, for a template. Its members have the names of docker's and podman's.
type Row map[string]any

// labelsMember is the member of a Row with its labels by name. Label reads it, and no template
// shows it.
const labelsMember = "\x00labels"

// headerMember is a member of the Row above a table alone.
const headerMember = "\x00header"

// WithLabels adds the labels to r: Labels is their text, and Label one of them.
func (r Row) WithLabels(labels map[string]string) Row {
	var list []string
	for name, value := range labels {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	r["Labels"], r[labelsMember] = strings.Join(list, ","), labels
	return r
}

// Label returns the value of one label, "" when there is none. In the row above a table it is the end of the label's name, as in
// docker's tables.
func (r Row) Label(name string) string {
	if _, header := r[headerMember]; header {
		return strings.NewReplacer("-", " ", "_", " ").Replace(name[strings.LastIndexByte(name, '.')+1:])
	}
	labels, _ := r[labelsMember].(map[string]string)
	return labels[name]
}

// MarshalJSON implements json.Marshaler.
func (r Row) MarshalJSON() ([]byte, error) {
	shown := map[string]any{}
	for name, value := range r {
		if name != labelsMember {
			shown[name] = value
		}
	}
	return marshal(shown)
}

// Format is the form of the output of a list or a document.
type Format struct {
	t     *template.Template
	table bool
	json  bool
}

// ParseFormat parses a template of text/template as docker and podman have them: "table TEMPLATE"
// aligns its columns below a header, "json" is a line of JSON for each object. A backslash with t
// or n is a tabulator or a new line, because shells do not make it one.
func ParseFormat(text string) (*Format, error) {
	f := &Format{}
	if text == "json" {
		f.json = true
		return f, nil
	}
	if rest, ok := strings.CutPrefix(text, "table"); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t' || rest[0] == '{') {
		f.table, text = true, strings.TrimLeft(rest, " \t")
		if text == "" {
			return nil, errors.New(`a template is needed after "table"`)
		}
	}
	t, err := template.New("").Option("missingkey=error").Funcs(functions()).Parse(unescape(text))
	if err != nil {
		return nil, fmt.Errorf("the template is not valid: %s", strings.TrimPrefix(err.Error(), "template: "))
	}
	f.t = t
	return f, nil
}

// unescape replaces the backslash sequences outside of actions. Inside of one they belong to a string of the template.
func unescape(text string) string {
	var out strings.Builder
	plain := strings.NewReplacer(`\t`, "\t", `\n`, "\n")
	for text != "" {
		before, rest, found := strings.Cut(text, "{{")
		out.WriteString(plain.Replace(before))
		if !found {
			break
		}
		action, after, closed := strings.Cut(rest, "}}")
		out.WriteString("{{" + action)
		if closed {
			out.WriteString("}}")
		}
		text = after
	}
	return out.String()
}

// functions returns the functions of docker's templates that text/template does not have.
func functions() template.FuncMap {
	return template.FuncMap{
		"json": func(v any) (string, error) {
			out, err := marshal(v)
			return string(out), err
		},
		"lower": strings.ToLower,
		"upper": strings.ToUpper,
		"title": func(s string) string {
			if s == "" {
				return s
			}
			return strings.ToUpper(s[:1]) + s[1:]
		},
		"split": strings.Split,
		"join": func(list any, sep string) (string, error) {
			switch list := list.(type) {
			case []string:
				return strings.Join(list, sep), nil
			case []any:
				var out []string
				for _, v := range list {
					out = append(out, fmt.Sprint(v))
				}
				return strings.Join(out, sep), nil
			case nil:
				return "", nil
			}
			return "", errors.New("join needs a list")
		},
		"pad": func(s string, before, after int) string {
			return strings.Repeat(" ", max(before, 0)) + s + strings.Repeat(" ", max(after, 0))
		},
		"truncate": func(s string, n int) string {
			if r := []rune(s); n >= 0 && len(r) > n {
				return string(r[:n])
			}
			return s
		},
		"println": fmt.Sprintln,
	}
}

// marshal is json.Marshal without escaping of <, > and &.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

// Headers are the headers of a list's columns that are not those of other lists.
type Headers map[string]string

// Rows writes each row in the format. own are the headers of this list's tables.
func (f *Format) Rows(w io.Writer, own Headers, rows []Row) error {
	if !f.table {
		for _, r := range rows {
			if err := f.One(w, r); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(w, 10, 1, 3, ' ', 0)
	if err := f.execute(tw, headers(own)); err != nil {
		return err
	}
	for _, r := range rows {
		if err := f.execute(tw, r); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// One writes one object, and the end of its line.
func (f *Format) One(w io.Writer, v any) error {
	if doc, ok := v.(Filled); ok && !f.json {
		return f.filled(w, doc)
	}
	if f.json {
		out, err := marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(append(out, '\n'))
		return err
	}
	return f.execute(w, v)
}

// filled writes a document: with docker's types or, if the template uses other members, with the JSON document.
func (f *Format) filled(w io.Writer, doc Filled) error {
	t, err := f.t.Clone()
	if err != nil {
		return err
	}
	// A label that a container does not have is no error in docker. The whole document is ours, also for {{json .}}.
	t.Option("missingkey=default").Funcs(template.FuncMap{"json": func(v any) (string, error) {
		if v == doc.typed {
			v = doc
		}
		out, err := marshal(v)
		return string(out), err
	}})
	if (&Format{t: t}).execute(w, doc.typed) == nil {
		return nil
	}
	return f.execute(w, doc.whole)
}

// Uses reports whether the template uses a member of the rows. Callers do not read expensive members without need.
func (f *Format) Uses(member string) bool {
	return f.json || f.t != nil && strings.Contains(f.t.Root.String(), "."+member)
}

func (f *Format) execute(w io.Writer, v any) error {
	var out bytes.Buffer
	if err := f.t.Execute(&out, v); err != nil {
		text := err.Error()
		// text/template names the template first, which has no name.
		text = strings.TrimPrefix(text, "template: ")
		return fmt.Errorf("execute the template: %s", text)
	}
	out.WriteByte('\n')
	_, err := w.Write(out.Bytes())
	return err
}

// headers returns the row above a table.
func headers(own Headers) Row {
	r := Row{headerMember: true}
	for _, name := range []string{
		"Names", "Image", "Command", "Status", "State", "Ports", "Size", "Labels", "Networks", "Mounts", "Owner", "Digest", "Name", "Driver", "Mountpoint", "Scope",
		"Repository", "Tag", "Pid", "Container", "ID", "Comment", "PIDs", "Platform", "Artifact", "Internal", "IPv4", "IPv6", "Availability", "Links", "Group", "Containers", "Type", "Active", "Reclaimable",
	} {
		r[name] = strings.ToUpper(name)
	}
	for name, header := range map[string]string{
		"ID": "ID", "CreatedAt": "CREATED AT", "RunningFor": "CREATED", "CreatedSince": "CREATED", "ExitCode": "EXIT CODE", "LocalVolumes": "LOCAL VOLUMES", "ImageID": "IMAGE ID", "CreatedBy": "CREATED BY",
		"CPUPerc": "CPU %", "MemUsage": "MEM USAGE / LIMIT", "MemPerc": "MEM %", "NetIO": "NET I/O", "BlockIO": "BLOCK I/O",
		"SharedSize": "SHARED SIZE", "UniqueSize": "UNIQUE SIZE", "VirtualSize": "SIZE", "TotalCount": "TOTAL",
	} {
		r[name] = header
	}
	for name, header := range own {
		r[name] = header
	}
	return r
}
