package mesos

import (
	"fmt"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestRulesAreOfWhoReallyRuns: for any names in an image and any spelling in a call, the rules
// check the uid, and uid 0 is root. A build without the defence fails this test.
func TestRulesAreOfWhoReallyRuns(t *testing.T) {
	n := newTestNode(t)
	n.Images.Offer("renamed", imagespec.ImageConfig{Cmd: []string{"serve"}}, map[string]string{
		"etc/passwd": "1000:x:0:0::/:/bin/sh\nalice:x:0:0::/root:/bin/sh\nroot:x:1000:1000::/:/bin/sh\nbob:x:1000:1000::/:/bin/sh\n", "etc/group": "wheel:x:0:\n",
	})
	n.is(launchA, 200, "") // as web, which is 33
	launches := 0
	for rules, users := range map[string]map[string]int{
		`{"principals":{"values":["ops"]},"users":{"values":["1000"]}},{"principals":{"type":"NONE"},"users":{"type":"ANY"}}`: {
			"alice": 403, "0": 403, "00": 403, "+0": 403, "-0": 403, "0:0": 403, "alice:wheel": 403, "": 403, "1001": 403,
			"4294967296": 400, "4294967295": 400, "-1": 400, "nobody": 400,
			"bob": 200, "root": 200, "1000": 200, "+1000": 200,
			"bob:wheel": 403, "bob:0": 403, "1000:1000": 403, // a group is more than the rule says
		},
		`{"principals":{"type":"NONE"},"users":{"values":["root"]}}`: {
			"alice": 403, "0": 403, "00": 403, "+0": 403, "alice:wheel": 403, "0:1000": 403,
			"bob": 200, "root": 200, "1001": 200, "": 200, // as its parent
		},
	} {
		v := visitor{t: t, authorization: opsBasic, address: n.listen(func(c *Config) {
			c.Credentials, c.ACLs = written(t, "ops s3cret"), written(t, `{"launch_nested_containers_as_user":[`+rules+`]}`)
		})}
		for user, code := range users {
			launches++
			v.is("/api/v1", fmt.Sprintf(`{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"n%d","parent":{"value":"a"}},"command":{"user":%q},
				"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":"renamed"}}}}}}`, launches, user), code, "", "")
		}
	}
}
