package document

import (
	"encoding/base64"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/longshore/longshore/internal/grant"
)

// Plain reports whether n is an untagged scalar without quotes: only such a one can be something else than a string.
func plain(n *yaml.Node) bool {
	return n.Style&(yaml.TaggedStyle|yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// Section 10.3.2 of YAML 1.2, the core schema.
var (
	nullText  = regexp.MustCompile(`^(null|Null|NULL|~|)$`)
	boolText  = regexp.MustCompile(`^(true|True|TRUE|false|False|FALSE)$`)
	intText   = regexp.MustCompile(`^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	floatText = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	nonFinite = regexp.MustCompile(`^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$`)
)

// Scalar resolves a scalar that is no grant.
func scalar(n *yaml.Node) (grant.Value, error) {
	v := grant.Value{Pos: place(n), Form: grant.String, Text: n.Value}
	tag := ""
	if n.Style&yaml.TaggedStyle != 0 {
		tag = n.ShortTag()
	}
	text := n.Value
	switch {
	case tag == "" && !plain(n), tag == "!!str", tag == "!":
		return v, nil
	case tag == "" && text != "" && !strings.ContainsRune("-+.~0123456789nNtTfF", rune(text[0])):
		return v, nil // as most scalars are: nothing but a string begins so
	case tag == "!!binary":
		return binary(v)
	case (tag == "" || tag == "!!null") && nullText.MatchString(text):
		return grant.Value{Pos: v.Pos}, nil
	case (tag == "" || tag == "!!bool") && boolText.MatchString(text):
		v.Form, v.Text = grant.Bool, strings.ToLower(text)
		return v, nil
	case (tag == "" || tag == "!!int") && intText.MatchString(text):
		return integer(v)
	case (tag == "" || tag == "!!float") && (floatText.MatchString(text) || tag != "" && intText.MatchString(text)):
		return float(v)
	case (tag == "" || tag == "!!float") && nonFinite.MatchString(text):
		return v, grant.Errorf(v.Pos, "JSON has no number for %s", text)
	case tag == "":
		return v, nil
	case tag == "!!null" || tag == "!!bool" || tag == "!!int" || tag == "!!float":
		return v, grant.Errorf(v.Pos, "%q is no %s", short(text), tag)
	}
	return v, unknownTag(n)
}

// Integer accepts numbers of 64 bits, signed or unsigned.
func integer(v grant.Value) (grant.Value, error) {
	v.Form = grant.Int
	text, base := strings.TrimPrefix(v.Text, "+"), 10
	switch {
	case strings.HasPrefix(text, "0o"):
		text, base = text[2:], 8
	case strings.HasPrefix(text, "0x"):
		text, base = text[2:], 16
	}
	if n, err := strconv.ParseInt(text, base, 64); err == nil {
		v.Text = strconv.FormatInt(n, 10)
		return v, nil
	}
	n, err := strconv.ParseUint(text, base, 64)
	if err != nil {
		return v, grant.Errorf(v.Pos, "integer %s does not fit into 64 bits", short(v.Text))
	}
	v.Text = strconv.FormatUint(n, 10)
	return v, nil
}

// Float writes a number as ECMAScript does, the shortest text that reads back as the same number.
func float(v grant.Value) (grant.Value, error) {
	v.Form = grant.Float
	f, err := strconv.ParseFloat(v.Text, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return v, grant.Errorf(v.Pos, "number %s does not fit into 64 bits", short(v.Text))
	}
	form := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		form = 'e'
	}
	if f == 0 {
		f = 0 // without the sign of -0
	}
	v.Text = strconv.FormatFloat(f, form, -1, 64)
	if form == 'e' {
		v.Text = strings.Replace(strings.Replace(v.Text, "e-0", "e-", 1), "e+0", "e+", 1)
	}
	return v, nil
}

func binary(v grant.Value) (grant.Value, error) {
	v.Form = grant.Binary
	bytes, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(v.Text), ""))
	if err != nil {
		return v, grant.Errorf(v.Pos, "!!binary: this is no base64")
	}
	v.Text = base64.StdEncoding.EncodeToString(bytes)
	return v, nil
}

// Short returns a piece of text that an error can repeat.
func short(text string) string {
	const most = 64
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
