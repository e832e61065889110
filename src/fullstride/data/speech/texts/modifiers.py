"""What goes with nouns and verbs: adjectives by what they may say of, adverbs, times, places in phrases, names."""

PERSON_ADJECTIVES = """
    aggressive ambitious amusing angry anxious arrogant ashamed awake awkward blind bold bored brave brilliant busy calm
    careful careless caring cautious charming cheerful clever clumsy confident confused courageous cruel curious deaf
    dear desperate determined dishonest dizzy eager earnest elderly elegant embarrassed enthusiastic faithful famous
    fearless fierce foolish friendly frightened funny furious generous gentle glad graceful grateful greedy grumpy
    guilty handsome happy hardworking healthy helpful honest hopeful humble hungry ignorant impatient impolite
    independent innocent intelligent jealous jolly joyful kind lazy lively lonely lost loud loyal lucky mad mature merry
    messy modest moody naughty nervous nice noisy obedient old optimistic organized patient playful pleasant polite poor
    popular proud quiet relaxed reliable religious responsible rich rude sad satisfied selfish sensible serious shy sick
    silent sincere skillful sleepy smart sober strict strong stubborn stupid successful surprised sympathetic talented
    talkative tall thirsty thoughtful tired tough truthful unhappy upset vain violent warm weak wealthy weary wicked
    wise witty worried young
"""
THING_ADJECTIVES = """
    ancient antique awful bare beautiful bent big blank blunt bright broken cheap circular clean clear colorful
    comfortable common convenient cozy crooked cute damaged dark decent deep delicate dirty dry dull dusty electric
    elegant empty enormous excellent expensive faded familiar fancy fantastic fashionable favorite filthy fine flat
    folded foreign fragile fresh full genuine giant gigantic golden good gorgeous grand greasy great handmade handy hard
    heavy hidden hollow horrible huge humid icy ideal immense impressive large light little long loose lovely low
    luxurious magnificent massive miniature missing modern muddy narrow natural neat new oily old open ordinary original
    oval pale perfect plain polished portable precious pretty quick rare rectangular reliable rotten rough round rusty
    scratched shallow sharp shiny short silky similar simple slender slim slippery small smooth soft solid spare special
    splendid spotless square steep sticky stiff straight strange sturdy stylish superb sweet tall temporary terrible
    thick thin tight tiny traditional transparent ugly unique unusual used useful useless valuable vast visible warm
    waterproof weak weird wet wide wonderful wooden worn worthless
"""
FOOD_ADJECTIVES = """
    bitter boiled burnt chilled cold creamy crisp crunchy delicious dried fresh fried frozen greasy grilled healthy hot
    juicy moldy organic raw rich ripe roasted rotten salty savory sour spicy stale sweet tasteless tasty tender warm
"""
IDEA_ADJECTIVES = """
    absurd accurate adequate amazing annual appropriate attractive average awkward bad basic boring brief brilliant
    certain cheerful classic complex complicated confusing considerable correct crazy critical crucial cultural daily
    dangerous definite different difficult direct double dramatic early easy economic effective embarrassing endless
    equal essential exact exciting extra extraordinary fair false familiar famous fascinating final financial foolish
    formal frequent funny general global good gradual great hard harmful helpful historic honest human ideal illegal
    immediate important impossible impressive incredible inevitable interesting internal international legal likely
    logical major meaningful mental minor moral mutual mysterious national necessary negative new normal obvious odd
    official ordinary outstanding painful particular peaceful perfect permanent personal pleasant pointless political
    popular positive possible powerful practical previous private professional public puzzling quick quiet rapid rare
    reasonable recent regular relevant remarkable responsible romantic rural scientific secret sensible serious severe
    shocking significant silly similar simple social specific strange strict sudden suitable surprising terrible
    thorough total tragic tricky true typical unexpected unfair universal unknown unlikely unpleasant unusual urban
    urgent useful usual valid visual vital weekly wild wonderful wrong
"""
PLACE_ADJECTIVES = """
    abandoned ancient beautiful big bright busy charming clean cold crowded dangerous dark deserted dirty distant dusty
    empty enormous famous foggy gloomy grand green historic huge isolated large little lonely lovely modern muddy
    mysterious narrow new noisy old peaceful pleasant private public quiet remote rocky royal rural safe sandy shady
    silent small snowy spacious strange sunny tidy tiny tropical vast warm wide windy
"""
ANIMAL_ADJECTIVES = """
    angry black brave brown clever fast fat fearless fierce friendly frightened furry gentle gray harmless huge hungry
    injured lazy lonely lost noisy old playful quiet sick sleepy slow small spotted strange striped tame timid tiny
    white wild wise young
"""
COLORS = """
    amber beige black blue bronze brown cream crimson gray green indigo ivory lavender orange pink purple red scarlet
    silver turquoise violet white yellow
"""
COMPARED = """
    bad/worse/worst big/bigger/biggest bright/brighter/brightest busy/busier/busiest cheap/cheaper/cheapest
    clean/cleaner/cleanest clever/cleverer/cleverest cold/colder/coldest dark/darker/darkest deep/deeper/deepest
    dirty/dirtier/dirtiest early/earlier/earliest easy/easier/easiest fast/faster/fastest fresh/fresher/freshest
    funny/funnier/funniest good/better/best happy/happier/happiest hard/harder/hardest heavy/heavier/heaviest
    high/higher/highest hot/hotter/hottest kind/kinder/kindest large/larger/largest late/later/latest
    light/lighter/lightest long/longer/longest loud/louder/loudest low/lower/lowest narrow/narrower/narrowest
    near/nearer/nearest new/newer/newest nice/nicer/nicest noisy/noisier/noisiest old/older/oldest poor/poorer/poorest
    pretty/prettier/prettiest proud/prouder/proudest quick/quicker/quickest quiet/quieter/quietest rich/richer/richest
    safe/safer/safest sharp/sharper/sharpest short/shorter/shortest simple/simpler/simplest slow/slower/slowest
    small/smaller/smallest smooth/smoother/smoothest soft/softer/softest strange/stranger/strangest
    strong/stronger/strongest sweet/sweeter/sweetest tall/taller/tallest thick/thicker/thickest thin/thinner/thinnest
    tiny/tinier/tiniest ugly/uglier/ugliest warm/warmer/warmest weak/weaker/weakest wet/wetter/wettest wide/wider/widest
    wild/wilder/wildest wise/wiser/wisest young/younger/youngest
"""
MANNER = """
    accidentally alone angrily anxiously awkwardly badly beautifully bravely briefly calmly carefully carelessly
    cautiously cheerfully clearly cleverly clumsily coldly correctly curiously deliberately eagerly easily elegantly
    enthusiastically evenly exactly fast firmly foolishly freely generously gently gladly gracefully gradually happily
    hastily honestly immediately impatiently innocently instantly jealously joyfully kindly lazily loudly madly
    mysteriously neatly nervously noisily openly patiently peacefully perfectly playfully politely poorly properly
    proudly quickly quietly randomly rapidly recklessly regularly reluctantly roughly rudely sadly secretly selfishly
    seriously sharply silently simply skillfully slowly smoothly softly steadily strangely successfully suddenly
    suspiciously tenderly thoroughly tightly together truthfully unexpectedly violently warmly weakly wearily well
    wildly willingly wisely
"""
FREQUENCY = """
    almost_always almost_never always frequently generally hardly_ever mostly never normally occasionally often rarely
    regularly seldom sometimes usually
"""
DEGREE = """
    a_bit a_little absolutely awfully completely deeply especially extremely fairly far_too incredibly particularly
    perfectly pretty quite rather really remarkably slightly so surprisingly terribly too totally truly unusually very
"""
OPENERS = """
    actually apparently basically certainly clearly eventually evidently finally first_of_all fortunately frankly
    however in_fact in_my_opinion in_other_words incidentally indeed luckily maybe meanwhile naturally nevertheless
    obviously oddly_enough of_course on_the_other_hand on_the_whole otherwise perhaps personally possibly probably sadly
    strangely surprisingly therefore to_be_honest to_my_surprise ultimately undoubtedly unfortunately unluckily
"""
PAST_TIMES = """
    a_long_time_ago a_moment_ago a_year_ago ages_ago an_hour_ago as_usual at_the_time before_breakfast during_the_war
    earlier_this_year in_those_days last_autumn last_Monday last_month last_night last_summer last_week last_year
    the_day_before_yesterday the_other_day this_morning three_weeks_ago two_days_ago yesterday yesterday_morning
"""
PRESENT_TIMES = """
    all_day all_year_round as_a_rule at_night at_the_moment day_after_day every_day every_evening every_morning
    every_now_and_then every_week every_year from_time_to_time in_general in_the_summer in_the_winter most_of_the_time
    now_and_again nowadays on_weekdays on_weekends once_a_week these_days three_times_a_year twice_a_month
"""
FUTURE_TIMES = """
    after_dinner before_long before_midnight by_the_end_of_the_year in_a_few_days in_a_minute in_an_hour in_two_weeks
    later later_today next_month next_spring next_Thursday next_week next_year one_day someday soon sooner_or_later
    the_day_after_tomorrow this_afternoon this_weekend tomorrow tomorrow_evening tomorrow_morning tonight within_a_year
"""
PREPOSITIONS = """
    above across_from at_the_back_of at_the_edge_of behind below beneath beside beyond close_to far_from in in_front_of
    in_the_middle_of inside near next_to opposite outside under
"""
NEAR_THING = """
    above behind below beneath beside by close_to in_front_of near next_to on on_top_of over to_the_left_of under
    underneath
"""
CONJUNCTIONS = """
    after although and and_so as_soon_as because before but even_though if just_as once since so though unless until
    when whenever while yet
"""
WEATHER = """
    chilly clear cloudy cold cool damp dark dry foggy freezing frosty hot humid mild misty muggy rainy snowy stormy
    sunny warm wet windy
"""
MONTHS = "January February March April May June July August September October November December"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
NAMES = """
    Adam Alice Amy Andrew Anna Arthur Beth Boyd Brian Carol Charles Chloe Claire Daniel David Diana Edward Ella Emma
    Eric Floyd Frank George Grace Hannah Harry Helen Henry Hugh Ian Jack James Jane Joan John Joseph Joyce Judy Julia
    Kate Kevin Laura Leo Linda Louise Lucy Luke Margaret Maria Mark Martha Martin Mary Matthew Michael Nathan Nicole
    Nora Oliver Oscar Owen Paul Peter Philip Rachel Ralph Richard Robert Roger Rose Roy Ruth Sally Sam Sarah Simon
    Sophie Steven Susan Theo Thomas Tony Troy Victor Vivian Walter Wendy William Yvonne Zoe
"""
CITIES = """
    Africa Alaska Amsterdam Asia Athens Australia Berlin Boston Brazil Cairo California Canada Chicago China Dallas
    Denver Detroit Dublin Egypt England Europe Florida France Geneva Germany Greece Hawaii Houston Iceland India Ireland
    Italy Japan Kenya Lisbon London Madrid Mexico Moscow Munich Norway Oxford Paris Peru Poland Portland Rome Russia
    Scotland Seattle Spain Sweden Switzerland Sydney Texas Tokyo Toronto Turkey Venice Vienna Virginia Wales Warsaw
    Washington Zurich
"""
LANGUAGES = """
    Arabic Chinese Danish Dutch English French German Greek Hindi Italian Japanese Korean Latin Polish Portuguese
    Russian Spanish Swedish Turkish
"""
SUBJECTS = """
    algebra art astronomy biology botany chemistry drama economics engineering geography geology geometry history law
    linguistics literature mathematics medicine philosophy physics politics psychology sociology zoology
"""
SPORTS = """
    badminton baseball basketball billiards bowling boxing cards checkers chess cricket dominoes football golf handball
    hockey rugby soccer softball squash tennis volleyball
"""
