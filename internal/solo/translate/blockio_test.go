package translate

import (
	"testing"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// FuzzDeviceRules checks that accepted rules have a kind of access and valid numbers.
func FuzzDeviceRules(f *testing.F) {
	for _, text := range []string{"c 1:3 rwm", "b *:* r", "a 8:* m", "c 1:3", "c 1:3 x", "c 1 rwm", "c -1:3 r", "c 1:3  r", "c 4294967296:1 r"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := deviceRules(&longshorev1.CreateRequest{DeviceCgroupRules: []string{text}})
		if err != nil {
			return
		}
		if len(rules) != 1 || !rules[0].Allow || rules[0].Access == "" || len(rules[0].Access) > 3 || rules[0].Major != nil && *rules[0].Major < 0 || rules[0].Minor != nil && *rules[0].Minor < 0 {
			t.Errorf("%q: %+v", text, rules)
		}
	})
}

// TestDeviceRulesThatAreInvalid checks texts that are nearly rules.
func TestDeviceRulesThatAreInvalid(t *testing.T) {
	for _, text := range []string{"", "c 1:3", "d 1:3 r", "c 1 r", "c *", "c 1:-3 r", "c 1:3 rwmr", "c 1:3 x", "c  1:3 r", "c 1:3 ", "c :3 r", "* 1:3 r"} {
		if rules, err := deviceRules(&longshorev1.CreateRequest{DeviceCgroupRules: []string{text}}); err == nil {
			t.Errorf("%q: %+v", text, rules)
		}
	}
}
