"""Verbs by what may follow them: nothing, a thing, food, a person, an idea, a clause, another verb, a preposition.

    walk            walks, walked, walking by rule
    stop+           the last letter doubles: stopped, stopping
    eat/ate/eaten   past and participle by no rule; put/put/put; forget+/forgot/forgotten doubles in "forgetting"
    look_at         two words, of which the first changes
"""

ALONE = """
    agree apologize arrive bark bleed/bled/bled blush bow breathe chat+ cheer clap+ complain cough crawl cry dance dare
    disappear doze dream drop+_in drown escape exercise fail faint fall/fell/fallen fight/fought/fought float
    fly/flew/flown frown gaze get+_up/got/gotten giggle go_out/went/gone groan grow_up/grew/grown grumble hesitate
    hide/hid/hidden hurry improve jog+ joke jump kneel/knelt/knelt laugh lean leave/left/left lie_down/lay/lain/lying
    listen march meditate nod+ panic/panicked/panicked/panicking pause play pray protest quarrel rehearse relax rest
    retire return rise/rose/risen rush sail scream shiver shop+ shout shrug+ shudder sigh sing/sang/sung
    sit+_down/sat/sat skate ski sleep/slept/slept slip+ smile smoke sneeze snore sob+ speak/spoke/spoken stammer
    stand_up/stood/stood stare start starve stay stretch struggle study stumble suffer sulk surrender survive
    swim+/swam/swum talk think/thought/thought travel tremble vanish volunteer vote wait wake_up/woke/woken walk wander
    weep/wept/wept whisper whistle win+/won/won wink work worry yawn yell
"""
THING = """
    adjust admire arrange balance bend/bent/bent borrow break/broke/broken bring/brought/brought build/built/built burn
    bury buy/bought/bought carry catch/caught/caught check choose/chose/chosen clean clutch collect cover crack crush
    decorate deliver design destroy dig+_up/dug/dug divide drag+ draw/drew/drawn drop+ dust empty examine exchange fetch
    fill find/found/found finish fix fold gather grab+ hang/hung/hung hide/hid/hidden hire hit+/hit/hit hold/held/held
    hurl ignore inspect install invent iron join keep/kept/kept kick knock_over label lend/lent/lent lift light/lit/lit
    load lock lose/lost/lost lower make/made/made mark measure mend mix move need notice open order own pack paint park
    pass pick_up place plug+_in point_at polish press print produce pull purchase push put+_away/put/put raise reach
    receive record recycle remove rent repair replace rescue return ring/rang/rung roll rub+ save scratch see/saw/seen
    sell/sold/sold separate shake/shook/shaken share shut+/shut/shut sketch smash snatch spill split+/split/split spot+
    squeeze stack steal/stole/stolen store swing/swung/swung switch_off switch_on take/took/taken tear/tore/torn test
    throw/threw/thrown tie/tied/tied/tying tighten toss touch trade transport treasure turn unload unlock unpack unwrap+
    use wash watch wear/wore/worn weigh wipe wrap+
"""
FOOD = """
    bake bite/bit/bitten boil burn buy/bought/bought carve chew chop+ cook cool cut+/cut/cut devour digest dip+
    eat/ate/eaten enjoy fetch finish freeze/froze/frozen fry grate grill heat mash melt offer order peel pickle pour
    prefer+ prepare refuse reheat roast sell/sold/sold serve share slice smell sniff spill sprinkle steam stir+ swallow
    taste toast try want waste weigh
"""
PERSON = """
    accuse admire advise amaze annoy arrest ask avoid beat/beat/beaten believe blame bother bully call challenge chase
    cheat comfort confuse congratulate convince cure deceive defeat defend disappoint distract disturb embarrass
    encourage entertain envy excuse fight/fought/fought find/found/found follow forget+/forgot/forgotten
    forgive/forgave/forgiven frighten greet guard guide hate hear/heard/heard help hire hug+ hurt/hurt/hurt impress
    influence inform insult interrupt interview introduce invite join judge kiss know/knew/known lead/led/led like love
    meet/met/met miss mock notice nudge nurse obey pay/paid/paid persuade phone photograph please praise protect punish
    question recognize remember remind rescue respect reward scare see/saw/seen serve shock spoil support surprise
    suspect teach/taught/taught tease tell/told/told thank threaten tickle train treat trust
    understand/understood/understood urge visit warn watch welcome worry
"""
IDEA = """
    abandon accept achieve acknowledge announce appreciate approve argue_about avoid begin+/began/begun believe cancel
    cause celebrate change choose/chose/chosen clarify compare complete consider copy_down criticize
    deal_with/dealt/dealt debate decide defend delay demand deny describe deserve develop discover discuss doubt
    emphasize enjoy exaggerate examine expect explain explore express fear finish follow forget+/forgot/forgotten guess
    handle hear/heard/heard ignore imagine improve interpret introduce investigate justify know/knew/known learn manage
    mean/meant/meant mention observe offer oppose organize overlook plan+ postpone predict prefer+ present prevent
    promise propose prove publish question read/read/read realize recall recommend record regret+ reject remember repeat
    report request resist reveal review risk satisfy settle share solve start stop+ study submit+ suggest support
    suspect take_over/took/taken talk_about think_about/thought/thought translate trust understand/understood/understood
    value welcome wonder_about write/wrote/written
"""
MASS_IDEA = """
    appreciate deserve enjoy expect gain hate lack like lose/lost/lost love need offer provide receive show/showed/shown
    value want
"""
CLAUSE = """
    admit+ agree announce argue assume believe claim complain conclude confirm decide declare deny discover doubt dream
    expect explain fear feel/felt/felt find_out/found/found forget+/forgot/forgotten guess hear/heard/heard hope imagine
    insist know/knew/known learn mean/meant/meant mention notice observe predict prefer+ pretend promise prove
    read/read/read realize recall remark remember repeat reply report say/said/said see/saw/seen suggest suppose suspect
    swear/swore/sworn think/thought/thought understand/understood/understood warn whisper write/wrote/written
"""
INFINITIVE = """
    agree aim arrange attempt begin+/began/begun choose/chose/chosen continue decide demand deserve expect fail
    forget+/forgot/forgotten hate hesitate hope intend learn like long love manage need offer plan+ prefer+ prepare
    pretend promise refuse remember seem start struggle swear/swore/sworn tend threaten try volunteer vow want wish
"""
GERUND = """
    admit+ avoid begin+/began/begun consider delay deny dislike enjoy finish forget+_about/forgot/forgotten hate imagine
    keep/kept/kept like love mention mind miss practice quit+/quit/quit recommend remember resist risk start stop+
    suggest
"""
TOWARD_THING = """
    aim_at argue_about bump_into care_for complain_about crash_into dream_about fall_over/fell/fallen
    hide_behind/hid/hidden hold_on_to/held/held joke_about jump_over knock_on laugh_at lean_on listen_to look_after
    look_at look_for pay_for/paid/paid point_at run+_into/ran/run search_for sit+_on/sat/sat stand_on/stood/stood
    stare_at step+_on stumble_over talk_about think_of/thought/thought wait_for walk_past wonder_about worry_about
"""
MOTION = """
    bicycle_to climb_to come_to/came/come crawl_to cycle_to dash_to drive_to/drove/driven escape_from fly_to/flew/flown
    gallop_to get+_to/got/gotten go_to/went/gone head_to hike_to hurry_to jog+_to journey_to leave_for/left/left
    march_to move_to pass_through race_to return_to ride_to/rode/ridden run+_to/ran/run rush_to sail_to
    set+_off_for/set/set skip+_to sneak_into stroll_to travel_to walk_to wander_through withdraw_from/withdrew/withdrawn
"""
GIVING = """
    bring/brought/brought buy/bought/bought fetch find/found/found get+/got/gotten give/gave/given hand lend/lent/lent
    make/made/made offer order owe pass sell/sold/sold send/sent/sent show/showed/shown throw/threw/thrown
"""
ANIMAL_ALONE = """
    bark bathe bite/bit/bitten bleed/bled/bled chew chirp crawl creep/crept/crept dig+/dug/dug dive drink/drank/drunk
    escape feed/fed/fed fly/flew/flown gallop growl hide/hid/hidden hiss hop+ howl hunt jump lie_down/lay/lain/lying
    limp nap+ perch purr race roar run+/ran/run scratch shiver sing/sang/sung sleep/slept/slept sniff squeak
    swim+/swam/swum wander whine yawn
"""
THING_ALONE = """
    arrive belong break/broke/broken burn change collapse crack disappear explode fade fall/fell/fallen
    freeze/froze/frozen glow leak melt move open rattle rust shake/shook/shaken shine/shone/shone shrink/shrank/shrunk
    sink/sank/sunk slide/slid/slid smell spin+/spun/spun stop+ swing/swung/swung tear/tore/torn vanish vibrate wobble
    work
"""
NATURE_ALONE = """
    appear begin+/began/begun bloom blow/blew/blown burn change continue disappear drift fade fall/fell/fallen flow
    glitter glow grow/grew/grown move pass rise/rose/risen shift shine/shone/shone sparkle spread/spread/spread swirl
    vanish
"""
