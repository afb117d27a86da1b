package unitfile

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	f, err := Parse("x", []byte("\ufeff# a comment\n[A]\nOne = 1\n; another\nTwo=a \\\n# between\n  b\\\n\\\nc\n[B]\nOne=x\n[A]\nOne=2\nOne=\nOne=\"3\"\nPath=c:\\\\\nEnd=e\\"))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Sections) != 2 {
		t.Fatalf("%+v", f)
	}
	if list := f.All("A", "One"); len(list) != 1 || list[0].Value != `"3"` || list[0].Line != 15 {
		t.Errorf("after an empty assignment: %+v", list)
	}
	if e, ok := f.Last("A", "One"); !ok || e.Value != "3" {
		t.Errorf("quotes: %+v", e)
	}
	if e, _ := f.Last("A", "Two"); strings.Join(strings.Fields(e.Value), " ") != "a b c" {
		t.Errorf("a continued line: %q", e.Value)
	}
	if e, _ := f.Last("A", "End"); e.Value != "e" {
		t.Errorf("continued at the end: %q", e.Value)
	}
	if e, _ := f.Last("A", "Path"); e.Value != `c:\\` {
		t.Errorf("an escaped backslash at the end: %q", e.Value)
	}
	if _, ok := f.Last("B", "Two"); ok {
		t.Error("a key of another section was found")
	}
	d, err := Parse("d", []byte("[A]\nOne=4\n[C]\nX=1\n"))
	if err != nil {
		t.Fatal(err)
	}
	f.Add(d)
	if e, _ := f.Last("A", "One"); e.Value != "4" || e.Path != "d" || len(f.Sections) != 3 {
		t.Errorf("with the drop-in: %+v", f)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"A=1":                                   "x:1: the assignment of A is in no section",
		"[A]\nB":                                `x:2: "B" is not Key=value`,
		"[A\n":                                  `x:1: "[A" is not [Section]`,
		"[A] b\n":                               "is not [Section]",
		"[]\n":                                  "is not [Section]",
		"[A]\n=1":                               "is not Key=value",
		"[A]\nb c=1":                            "is not Key=value",
		"[A]\n\nB=\xff\n":                       "x:3: the line is not text in UTF-8",
		"[A]\nB=\x00\n":                         "x:2: the line is not text in UTF-8",
		"[A]\n" + strings.Repeat("#", maxBytes): "more than",
	} {
		_, err := Parse("x", []byte(text))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %s", text, err, want)
		}
	}
}

func TestBool(t *testing.T) {
	f, err := Parse("x", []byte("[A]\nYes=On\nNo=0\nOdd=maybe\n"))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"Yes": true, "No": false, "None": true} {
		if got, err := f.Bool("A", key, true); got != want || err != nil {
			t.Errorf("%s: %v, %v", key, got, err)
		}
	}
	if _, err := f.Bool("A", "Odd", true); err == nil || err.Error() != "x:4: Odd=maybe is neither true nor false" {
		t.Error(err)
	}
}

func TestSplit(t *testing.T) {
	for in, want := range map[string][]string{
		"":                                    nil,
		"  a  b\tc ":                          {"a", "b", "c"},
		`"a b" 'c "d"' e"f g"h`:               {"a b", `c "d"`, "ef gh"},
		`a\x41\101\n\s\\ \" \u00e4 '` + `\''`: {"aAA\n \\", `"`, "ä", "'"},
		`"" ''`:                               {"", ""},
		`\; ;`:                                {";", ";"},
		`"A=b c" 'B=d'`:                       {"A=b c", "B=d"},
		`\xff`:                                {"\xff"},
		`\U0001f600`:                          {"😀"},
	} {
		got, err := Split(in)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`"a`, `'a`, `a\`, `\q`, `\xg0`, `\x1`, `\777`, `\ud800`, `\x00`, `\U00110000`} {
		if got, err := Split(in); err == nil {
			t.Errorf("%s: %q", in, got)
		}
	}
}

// TestQuote checks that a word of any bytes is one word again, in one line.
func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "": `""`, "a b": `"a b"`, `a"b\c`: `"a\"b\\c"`, "a\nExecStart=/bin/evil": `"a\nExecStart=/bin/evil"`, "a'b": `"a'b"`,
		";": `";"`, "#x": `"#x"`, "%n$x": "%n$x", "\xff\x01": `"\xff\x01"`, "ä": `"ä"`, "|&": `"|&"`, "a\\": `"a\\"`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
		if back, err := Split(Quote(in)); err != nil || len(back) != 1 || back[0] != in {
			t.Errorf("%q comes back as %q, %v", in, back, err)
		}
	}
	if got := Line([]string{"a", Literal("50%$HOME"), ""}); got != `a 50%%$$HOME ""` {
		t.Error(got)
	}
}

// FuzzParse checks that a file that is written from a parsed one is parsed to the same.
func FuzzParse(f *testing.F) {
	f.Add("[Container]\nImage=x\nExec=sh -c 'a b' \\\n  c\n[Service]\nRestart=always\n")
	f.Add("[A]\n\\\n\n\\\n#\n\\")
	f.Add("# x\n[A]\nB=\"c\\x41\"\nB=\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse("x", []byte(text))
		if err != nil {
			return
		}
		var b strings.Builder
		for _, s := range p.Sections {
			b.WriteString("[" + s.Name + "]\n")
			for _, e := range s.Entries {
				if strings.ContainsAny(e.Key+e.Value, "\n\x00") || !utf8.ValidString(e.Value) {
					t.Fatalf("an assignment has bytes that end it: %+v", e)
				}
				b.WriteString(e.Key + "=" + e.Value + "\n")
			}
		}
		again, err := Parse("x", []byte(b.String()))
		if err != nil {
			t.Fatalf("%v in %q", err, b.String())
		}
		for i, s := range p.Sections {
			same := slices.EqualFunc(s.Entries, again.Sections[i].Entries, func(a, b Entry) bool { return a.Key == b.Key && a.Value == b.Value })
			if s.Name != again.Sections[i].Name || !same {
				t.Fatalf("%+v became %+v", s, again.Sections[i])
			}
		}
	})
}

// FuzzWords checks that words survive Line and Split, and that Line is one line.
func FuzzWords(f *testing.F) {
	f.Add(`a "b c" 'd' \x41`)
	f.Fuzz(func(t *testing.T, text string) {
		words, err := Split(text)
		if err != nil {
			return
		}
		line := Line(words)
		if strings.ContainsAny(line, "\n\r\x00") || !utf8.ValidString(line) {
			t.Fatalf("%q is not a line", line)
		}
		back, err := Split(line)
		if err != nil || !slices.Equal(back, words) {
			t.Fatalf("%q became %q, %v", words, back, err)
		}
	})
}
