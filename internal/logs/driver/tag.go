package driver

import (
	"regexp"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// maxTag bounds a tag and its template, in bytes.
const maxTag = 1024

// tag is a template of a tag, in pieces.
type tag []func(Source) string

// actions are the actions of a tag's template: a field, or a label.
var actions = regexp.MustCompile(`\{\{-?\s*(?:\.(\w+)|index\s+\.ContainerLabels\s+"([^"]*)"|\.ContainerLabels\.([\w]+))\s*-?\}\}`)

// fields returns the fields of docker's templates of tags.
func fields() map[string]func(Source) string {
	return map[string]func(Source) string{
		"ID":          func(s Source) string { return short(s.ID) },
		"FullID":      func(s Source) string { return s.ID },
		"Name":        func(s Source) string { return s.Name },
		"ImageID":     func(s Source) string { return short(imageHex(s.ImageID)) },
		"ImageFullID": func(s Source) string { return s.ImageID },
		"ImageName":   func(s Source) string { return s.Image },
		"DaemonName":  func(Source) string { return "longshore" },
		"Hostname":    func(s Source) string { return s.Hostname },
		"Command":     func(s Source) string { return s.Command },
	}
}

func short(id string) string { return id[:min(len(id), 12)] }

func imageHex(id string) string {
	_, hex, _ := strings.Cut(id, ":")
	return hex
}

// parseTag reads docker's templates of tags, as far as they consist of fields and of single labels.
func parseTag(text string) (tag, error) {
	if len(text) > maxTag {
		return nil, invalid.Plainf("log option tag is longer than %d bytes", maxTag)
	}
	var t tag
	known := fields()
	literal := func(s string) error {
		if strings.Contains(s, "{{") || strings.Contains(s, "}}") {
			return invalid.Plainf(`log option tag %q: only the fields {{.ID}}, {{.FullID}}, {{.Name}}, {{.ImageID}}, {{.ImageFullID}}, {{.ImageName}}, `+
				`{{.DaemonName}}, {{.Hostname}} and {{.Command}}, and {{index .ContainerLabels "NAME"}}, are supported`, text)
		}
		t = append(t, func(Source) string { return s })
		return nil
	}
	at := 0
	for _, m := range actions.FindAllStringSubmatchIndex(text, -1) {
		if err := literal(text[at:m[0]]); err != nil {
			return nil, err
		}
		at = m[1]
		if m[2] < 0 {
			from := max(m[4], m[6])
			label := text[from:max(m[5], m[7])]
			t = append(t, func(s Source) string { return s.Labels[label] })
			continue
		}
		field, ok := known[text[m[2]:m[3]]]
		if !ok {
			return nil, literal(text[m[0]:m[1]])
		}
		t = append(t, field)
	}
	return t, literal(text[at:])
}

func (t tag) expand(s Source) string {
	var b strings.Builder
	for _, part := range t {
		b.WriteString(part(s))
	}
	out := b.String()
	return strings.ToValidUTF8(out[:min(len(out), maxTag)], "")
}

// plain returns text in printable ASCII without spaces, of at most limit bytes: a label or a name cannot end a header.
func plain(text string, limit int) string {
	out := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	if out == "" {
		return "-"
	}
	return out[:min(len(out), limit)]
}
