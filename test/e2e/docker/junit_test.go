package docker

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
)

// readJUnit reads the report that pytest writes with --junitxml. The names are "MODULE CLASS.test", with the
// last elements of the class's name. A failed cleanup is a failure of its test. The text of each
// failure goes to keep.
func readJUnit(r io.Reader, keep io.Writer) (outcome, error) {
	type fault struct {
		Text string `xml:",chardata"`
	}
	var doc struct {
		Cases []struct {
			Class   string `xml:"classname,attr"`
			Name    string `xml:"name,attr"`
			Failure *fault `xml:"failure"`
			Error   *fault `xml:"error"`
			Skipped *fault `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	if err := xml.NewDecoder(r).Decode(&doc); err != nil {
		return nil, err
	}
	o := outcome{}
	for _, c := range doc.Cases {
		parts := strings.Split(c.Class, ".")
		if len(parts) < 2 {
			return nil, fmt.Errorf("the test %s has the class %q: want MODULE.CLASS", c.Name, c.Class)
		}
		name := parts[len(parts)-2] + " " + parts[len(parts)-1] + "." + c.Name
		switch {
		case c.Failure != nil || c.Error != nil:
			o[name] = failed
		case o[name] == failed:
		case c.Skipped != nil:
			o[name] = skipped
		default:
			o[name] = passed
		}
		for _, f := range []*fault{c.Failure, c.Error} {
			if f != nil {
				if _, err := fmt.Fprintf(keep, "%s\n%s\n", name, f.Text); err != nil {
					return nil, err
				}
			}
		}
	}
	return o, nil
}

// TestReadJUnit reads a report with each result.
func TestReadJUnit(t *testing.T) {
	const begin, end = `<?xml version="1.0"?><testsuites><testsuite name="x">`, `</testsuite></testsuites>`
	report := begin + `
<testcase classname="tests.integration.api_test.One" name="test_pass" time="1"/>
<testcase classname="tests.integration.api_test.One" name="test_fail"><failure message="m">why &lt;not&gt;</failure></testcase>
<testcase classname="tests.integration.api_test.One" name="test_setup"><error message="m">no setup</error></testcase>
<testcase classname="tests.integration.api_test.Two" name="test_pass"><skipped message="m">later</skipped></testcase>
<testcase classname="tests.integration.api_test.Two" name="test_cleanup"></testcase>
<testcase classname="tests.integration.api_test.Two" name="test_cleanup"><error>no cleanup</error></testcase>` + end
	var kept strings.Builder
	got, err := readJUnit(strings.NewReader(report), &kept)
	if err != nil {
		t.Fatal(err)
	}
	want := outcome{
		"api_test One.test_pass": passed, "api_test One.test_fail": failed, "api_test One.test_setup": failed,
		"api_test Two.test_pass": skipped, "api_test Two.test_cleanup": failed,
	}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for name, r := range want {
		if got[name] != r {
			t.Errorf("%s: %q, want %q", name, got[name], r)
		}
	}
	for _, text := range []string{"why <not>", "no setup", "no cleanup"} {
		if !strings.Contains(kept.String(), text) {
			t.Errorf("the report lacks %q: %q", text, kept.String())
		}
	}
	for _, bad := range []string{"", "{}", begin + `<testcase classname="x" name="y"/>` + end} {
		if o, err := readJUnit(strings.NewReader(bad), io.Discard); err == nil {
			t.Errorf("%q is read: %v", bad, o)
		}
	}
}
