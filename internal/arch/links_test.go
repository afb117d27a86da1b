package arch_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	linkText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	noSlug     = regexp.MustCompile(`[^\pL\pN_ -]`)
)

// anchors returns the anchors of a document's headings, as hosts of repositories make them.
func (d document) anchors() (found []string) {
	for _, m := range heading.FindAllStringSubmatch(d.text, -1) {
		text := strings.ToLower(linkText.ReplaceAllString(strings.TrimSpace(m[1]), "$1"))
		found = append(found, strings.ReplaceAll(noSlug.ReplaceAllString(text, ""), " ", "-"))
	}
	return found
}

// brokenLinks returns the links of a document to a file or a heading that does not exist. anchors has the headings of
// each document.
func (d document) brokenLinks(anchors map[string][]string, exists func(rel string) bool) (broken []string) {
	for _, m := range linkTarget.FindAllStringSubmatch(d.text, -1) {
		file, anchor, _ := strings.Cut(m[1], "#")
		if strings.Contains(file, ":") {
			continue // it leads out of the tree
		}
		rel := d.rel
		if file != "" {
			rel = path.Join(path.Dir(d.rel), file)
		}
		known, isDocument := anchors[rel]
		if !exists(rel) || anchor != "" && isDocument && !slices.Contains(known, anchor) {
			broken = append(broken, m[1])
		}
	}
	return broken
}

// TestLinksLeadSomewhere checks the links between documents.
func TestLinksLeadSomewhere(t *testing.T) {
	all, anchors := documents(t), map[string][]string{}
	for _, d := range all {
		anchors[d.rel] = d.anchors()
	}
	exists := func(rel string) bool {
		_, err := os.Stat(filepath.Join("../..", filepath.FromSlash(rel)))
		return err == nil
	}
	for _, d := range all {
		for _, l := range d.brokenLinks(anchors, exists) {
			t.Errorf("%s: the link %s leads nowhere", d.rel, l)
		}
	}
}

// TestBrokenLinksAreFound is the control of TestLinksLeadSomewhere.
func TestBrokenLinksAreFound(t *testing.T) {
	other := document{"docs/b.md", "# A `name`, and (more)\n## [Linked](x) part\n"}
	if want := []string{"a-name-and-more", "linked-part"}; !slices.Equal(other.anchors(), want) {
		t.Errorf("anchors are %q, want %q", other.anchors(), want)
	}
	d := document{"docs/guide/a.md", "[](../b.md#linked-part) [](#here) [](https://x.example/y#z) [](../gone.md) [](../b.md#gone)\n# Here\n"}
	anchors := map[string][]string{other.rel: other.anchors(), d.rel: d.anchors()}
	exists := func(rel string) bool { return anchors[rel] != nil }
	if got, want := d.brokenLinks(anchors, exists), []string{"../gone.md", "../b.md#gone"}; !slices.Equal(got, want) {
		t.Errorf("broken links are %q, want %q", got, want)
	}
}
